"""What later papers report for the paper's methods, to be drawn beside our own scores. None is of this package.

Only figures whose source, trunk and embedding size are known are here. The paper itself has curves and no numbers, and the
tables in circulation for CARS196 at size 512 could not be traced, so they are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from liftedstruct.data import CARS, CUB, ONLINE_PRODUCTS

__all__ = ["PUBLISHED", "Published", "published_for", "published_like"]


@dataclass(frozen=True)
class Published:
    """Recall@K of one method on one dataset, as somebody else reports it."""

    method: str  # a name of ours, such as "lifted_struct"
    size: int  # of the embedding
    trunk: str
    recall: Mapping[int, float]  # by K, 0 to 1
    source: str  # who reports it, and where


def _rows(size: int, trunk: str, source: str, ks: tuple[int, ...], **percents: tuple[float, ...]) -> tuple[Published, ...]:
    return tuple(
        Published(method, size, trunk, {k: percent / 100 for k, percent in zip(ks, row, strict=True)}, source)
        for method, row in percents.items()
    )


LATER = (64, "Inception-BN", "Song et al., CVPR 2017")  # the first author's own later run
PUBLISHED: dict[str, tuple[Published, ...]] = {  # by the name of the dataset
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
    """Those rows that are of one method and size of the embedding; often none."""
    return tuple(row for row in published if (row.method, row.size) == (method, size))


def published_for(name: str) -> tuple[Published, ...]:
    """What is published for a dataset, by the name that :class:`liftedstruct.PackedImages` has for it; often nothing.

    >>> [row.method for row in published_for("CARS196")], published_for("folder")
    (['lifted_struct'], ())

    """
    return PUBLISHED.get(name, ())
