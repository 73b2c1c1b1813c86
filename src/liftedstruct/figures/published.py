"""Scores that later papers report for the paper's methods, for reference. None was computed by this package.

Only scores with a known source, trunk and embedding dimension are included. The paper itself has curves and no numbers. The
numbers in circulation for CARS196 at 512-d could not be traced to a source and are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from liftedstruct.data import CARS, CUB, ONLINE_PRODUCTS

__all__ = ["PUBLISHED", "Published", "published_for", "published_like"]


@dataclass(frozen=True)
class Published:
    """Recall@K of one method on one dataset, as published elsewhere."""

    method: str  # name in this package, such as "lifted_struct"
    size: int  # dimension of the embedding
    trunk: str
    recall: Mapping[int, float]  # {K: recall}, 0 to 1
    source: str  # authors, venue and year


def _rows(size: int, trunk: str, source: str, ks: tuple[int, ...], **percents: tuple[float, ...]) -> tuple[Published, ...]:
    return tuple(
        Published(method, size, trunk, {k: percent / 100 for k, percent in zip(ks, row, strict=True)}, source)
        for method, row in percents.items()
    )


LATER = (64, "Inception-BN", "Song et al., CVPR 2017")  # later scores by the paper's first author
PUBLISHED: dict[str, tuple[Published, ...]] = {  # by dataset name
    CUB.name: (
        *_rows(
            *(512, "GoogLeNet", "Rolínek et al., CVPR 2020"),
            ks=(1, 2, 4, 8),
            contrastive=(26.4, 37.7, 49.8, 62.3),
            triplet=(36.1, 48.6, 59.3, 70.0),
            lifted_struct=(47.2, 58.9, 70.2, 80.2),
        ),
        *_rows(*LATER, ks=(1, 2, 4, 8), lifted_struct=(43.6, 56.6, 68.6, 79.6)),
    ),
    CARS.name: _rows(*LATER, ks=(1, 2, 4, 8), lifted_struct=(53.0, 65.7, 76.0, 84.3)),
    ONLINE_PRODUCTS.name: (
        *_rows(
            *(512, "GoogLeNet", "Rolínek et al., CVPR 2020"),
            ks=(1, 10, 100, 1000),
            contrastive=(42.0, 58.2, 73.8, 89.1),
            triplet=(42.1, 63.5, 82.5, 94.8),
            lifted_struct=(62.1, 79.8, 91.3, 97.4),
        ),
        *_rows(*LATER, ks=(1, 10, 100), lifted_struct=(62.5, 80.8, 91.9)),
    ),
}


def published_like(published: Sequence[Published], method: str, size: int) -> tuple[Published, ...]:
    """Return the published scores of one method and dimension, if any."""
    return tuple(row for row in published if (row.method, row.size) == (method, size))


def published_for(name: str) -> tuple[Published, ...]:
    """Return the published scores for a dataset by its name in `PackedImages`, if any.

    Examples:
        >>> [row.method for row in published_for("CARS196")], published_for("folder")
        (['lifted_struct'], ())

    """
    return PUBLISHED.get(name, ())
