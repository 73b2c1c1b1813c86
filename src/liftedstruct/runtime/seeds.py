"""Random streams of a training run: the last word of a seed (run seed, counter, stream) says what is drawn."""

__all__ = ["CROPS", "DRAWS", "DROPOUT", "PERMUTATION", "SAMPLE", "VALIDATION", "WEIGHTS"]

PERMUTATION, DRAWS = 0, 1  # of a sampler
VALIDATION = 2  # classes held out
CROPS = 3
WEIGHTS = 5
DROPOUT = 6
SAMPLE = 7  # images from which a head or a scale is initialized
