"""Catalogs: images of products with their embeddings in a folder or a database, and exact search for a photo among them."""

from liftedstruct.catalog.adding import Added
from liftedstruct.catalog.catalog import Answer, Catalog, Match
from liftedstruct.catalog.picture import answers_picture
from liftedstruct.catalog.store import STORES, Item
from liftedstruct.catalog.where import parse_where

__all__ = ["STORES", "Added", "Answer", "Catalog", "Item", "Match", "answers_picture", "parse_where"]
