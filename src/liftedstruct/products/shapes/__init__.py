"""The shapes, one file per category: a function that builds a product from its dice."""
