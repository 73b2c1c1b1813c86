"""Two embeddings of the same images: which one is better, and could it be chance?"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from liftedstruct.clustering import contingency
from liftedstruct.evaluation.evaluating import hits_by_class
from liftedstruct.evaluation.resampling import AGREEMENTS, LEVEL, Array, bootstrap, interval, sign_flip_p, weighted_recall
from liftedstruct.evaluation.scores import Scores
from liftedstruct.retrieval import SINGLES
from liftedstruct.runtime.checks import check_count

__all__ = ["Comparison", "Difference", "compare"]

Part = tuple[
    str, Array, Array, int
]  # measure, what each class adds to the difference (C,), bootstrap values of it, classes drawn


@dataclass(frozen=True)
class Difference:
    """By how much the first score is above the second, with 95 % interval and two-sided p."""

    a: float
    b: float
    value: float  # a - b
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found for each measure that both have."""

    differences: dict[str, Difference]  # by the names in Scores.measures
    names: tuple[str, str]
    n_images: int
    n_classes: int

    def verdict(self, measure: str) -> str:
        """Which of the two is better by a measure, if the difference is significant."""
        difference = self.differences[measure]
        if difference.p >= 1 - LEVEL:
            return "no significant difference"
        return f"{self.names[0] if difference.value > 0 else self.names[1]} is better"

    def __str__(self) -> str:
        rows = [("", *self.names, "difference", f"{100 * LEVEL:.0f} % interval", "p", "")]
        for measure, d in self.differences.items():
            scores = (f"{100 * d.a:.1f} %", f"{100 * d.b:.1f} %", f"{100 * d.value:+.1f}")
            rows.append((measure, *scores, f"{100 * d.low:+.1f} to {100 * d.high:+.1f}", f"{d.p:.4f}", self.verdict(measure)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            name, *numbers, verdict = (text.rjust(width) for text, width in zip(row, widths, strict=True))
            lines.append("  ".join((name.strip().ljust(widths[0]), *numbers, verdict.strip())).rstrip())
        return "\n".join([*lines, "", f"paired over {self.n_classes:,} classes of {self.n_images:,} images"])


def compare(
    a: Scores, b: Scores, *, names: tuple[str, str] = ("a", "b"), samples: int = 1000, flips: int = 10_000, seed: int = 0
) -> Comparison:
    """Test two evaluations of the same images against each other, class by class.

    The interval is that of the difference, by bootstrap over the classes, with the same draws for both. For p, the sign of each
    class's share in the difference is flipped at random. With Recall@K a class's share is its hits by one less its hits by the
    other: the test is exact, whatever the number of classes. NMI and F1 are no sums over classes; there class j has its
    jackknife share, (d + (C - 1) (mean d₋ᵢ - d₋ⱼ)) / C, with d the difference and d₋ⱼ the one without class j. These shares add
    up to d. See :mod:`liftedstruct.evaluation.resampling` for what the test does with equal embeddings.

    The clusters are taken as they are. p is that of one measure; of twenty measures without a difference, one has p < 0.05.

    Args:
        a: scores of the first embedding.
        b: scores of the second, of the same images in the same order; scores with ids of their images must have the same.
        names: what to call the two.
        samples: bootstrap draws.
        flips: of the signs.
        seed: of both.

    """
    check_count("samples", samples), check_count("flips", flips), check_count("seed", seed, 0)
    if not a.same_images(b):
        what = "ids" if np.array_equal(a.classes, b.classes) else "classes"
        raise ValueError(
            f"scores must be of the same images in the same order, got {len(a.classes):,} and {len(b.classes):,} images whose "
            f"{what} differ. Evaluate both embeddings on the same images."
        )
    if a.singles != b.singles:
        raise ValueError(f"scores must treat single images alike, got singles={a.singles!r} and {b.singles!r}. Choose one.")
    ks = [k for k in a.recall if k in b.recall]
    clusterings = [name for name in a.clusters if name in b.clusters]
    if not ks and not clusterings:
        raise ValueError(f"scores must have a measure in common, got {[*a.measures]} and {[*b.measures]}. Use the same ks.")

    parts = [*_recall_parts(a, b, ks, samples, seed)] if ks else []
    for name in clusterings:
        parts += _agreement_parts(a, b, name, samples, seed)
    p = sign_flip_p(np.stack([shares for _, shares, _, _ in parts], axis=1), flips, seed)
    differences = {}
    for (measure, _, draws, n_classes), p_value in zip(parts, p.tolist(), strict=True):
        first, second = a.measures[measure].value, b.measures[measure].value
        low, high = interval(first - second, draws, n_classes, least=-1.0)
        differences[measure] = Difference(first, second, first - second, low, high, p_value)
    return Comparison(differences, names, n_images=len(a.classes), n_classes=int(a.classes.max()) + 1)


def _recall_parts(a: Scores, b: Scores, ks: list[int], samples: int, seed: int) -> Iterator[Part]:
    (hits_a, queries), (hits_b, _) = (hits_by_class(each.ranks, each.classes, ks, SINGLES[each.singles]) for each in (a, b))
    more = hits_a - hits_b  #                                                                         (C, s)
    asked = queries > 0
    draws = bootstrap(partial(weighted_recall, more[asked], queries[asked]), int(asked.sum()), samples, seed)
    for k, shares, column in zip(ks, more.T, draws.T, strict=True):
        yield f"Recall@{k}", shares, column, int(asked.sum())


def _agreement_parts(a: Scores, b: Scores, name: str, samples: int, seed: int) -> Iterator[Part]:
    table_a, table_b = contingency(a.classes, a.clusters[name]), contingency(b.classes, b.clusters[name])
    C = len(table_a.class_sizes)
    for kind, (weighted, without) in AGREEMENTS.items():
        measure = f"{kind}, {name}"
        d = a.measures[measure].value - b.measures[measure].value
        d_without = without(table_a) - without(table_b)  #                                            (C,)
        shares = (d + (C - 1) * (d_without.mean() - d_without)) / C  #                                (C,)
        draws_a, draws_b = (bootstrap(partial(weighted, table), C, samples, seed) for table in (table_a, table_b))
        yield measure, shares, draws_a - draws_b, C
