"""Paired comparison of two embeddings of the same images."""

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

# Metric, contribution of each class to the difference (C,), bootstrap values of the difference, number of classes drawn.
Part = tuple[str, Array, Array, int]


@dataclass(frozen=True)
class Difference:
    """Difference between two scores, with 95 % confidence interval and two-sided p-value.

    Attributes:
        a: first score, 0 to 1.
        b: second score, 0 to 1.
        value: a - b.
        low: lower end of the interval of the difference.
        high: upper end of the interval of the difference.
        p: two-sided p-value.

    """

    a: float
    b: float
    value: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`. Print it for a table.

    Attributes:
        differences: difference in each metric that both scores have, by its name in `Scores.metrics`, such as "Recall@1".
        names: names of the two embeddings.
        n_images: number of images.
        n_classes: number of classes.

    """

    differences: dict[str, Difference]
    names: tuple[str, str]
    n_images: int
    n_classes: int

    def verdict(self, metric: str) -> str:
        """Return which embedding is better in a metric, or "no significant difference" if p >= 0.05."""
        difference = self.differences[metric]
        if difference.p >= 1 - LEVEL:
            return "no significant difference"
        return f"{self.names[0] if difference.value > 0 else self.names[1]} is better"

    def __str__(self) -> str:
        rows = [("", *self.names, "difference", f"{100 * LEVEL:.0f} % interval", "p", "")]
        for metric, d in self.differences.items():
            scores = (f"{100 * d.a:.1f} %", f"{100 * d.b:.1f} %", f"{100 * d.value:+.1f}")
            rows.append((metric, *scores, f"{100 * d.low:+.1f} to {100 * d.high:+.1f}", f"{d.p:.4f}", self.verdict(metric)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            name, *numbers, verdict = (text.rjust(width) for text, width in zip(row, widths, strict=True))
            lines.append("  ".join((name.strip().ljust(widths[0]), *numbers, verdict.strip())).rstrip())
        return "\n".join([*lines, "", f"paired by class: {self.n_classes:,} classes, {self.n_images:,} images"])


def compare(
    a: Scores, b: Scores, *, names: tuple[str, str] = ("a", "b"), samples: int = 1000, flips: int = 10_000, seed: int = 0
) -> Comparison:
    r"""Test whether two embeddings of the same images differ, with a paired test over the classes.

    The confidence interval of the difference is from a class bootstrap with the same draws for both embeddings. The p-value is
    from a sign-flip test: the sign of each class's contribution to the difference is flipped at random. For Recall@K, the
    contribution of a class is its number of hits with the first embedding minus the number with the second. The test is exact
    for any number of classes. NMI and F1 are not sums over classes, so the contribution of class j is estimated by the
    jackknife:

    $$
    \frac{d + (C - 1) (\bar{d} - d_{-j})}{C}
    $$

    with the difference $d$, the difference $d_{-j}$ without class j, and the mean $\bar{d}$ of $d_{-j}$ over the C classes.
    These contributions sum to $d$. The clusters are not recomputed. The module `liftedstruct.evaluation.resampling` documents
    how often the test finds a significant difference between embeddings that differ only by chance.

    Each p-value is for one metric, without correction for multiple tests: of twenty metrics without a difference, expect one
    with p < 0.05.

    Args:
        a: scores of the first embedding.
        b: scores of the second embedding, for the same images in the same order. If scores have image ids, the ids must match.
        names: names of the two embeddings in the result.
        samples: number of bootstrap draws.
        flips: number of random sign flips.
        seed: seed of the bootstrap and the sign flips.

    Raises:
        ValueError: if the scores are of different images or have no metric in common.

    """
    check_count("samples", samples), check_count("flips", flips), check_count("seed", seed, 0)
    if not a.same_images(b):
        what = "ids" if np.array_equal(a.classes, b.classes) else "classes"
        raise ValueError(
            f"scores must be of the same images in the same order, got {len(a.classes):,} and {len(b.classes):,} images whose "
            f"{what} differ. Evaluate both embeddings on the same images."
        )
    if a.singles != b.singles:
        raise ValueError(
            f"scores must have the same setting of singles, got {a.singles!r} and {b.singles!r}. Use one of them for both."
        )
    ks = [k for k in a.recall if k in b.recall]
    clusterings = [name for name in a.clusters if name in b.clusters]
    if not ks and not clusterings:
        raise ValueError(f"scores must have a metric in common, got {[*a.metrics]} and {[*b.metrics]}. Use the same ks.")

    parts = [*_recall_parts(a, b, ks, samples, seed)] if ks else []
    for name in clusterings:
        parts += _agreement_parts(a, b, name, samples, seed)
    p = sign_flip_p(np.stack([contributions for _, contributions, _, _ in parts], axis=1), flips, seed)
    differences = {}
    for (metric, _, draws, n_classes), p_value in zip(parts, p.tolist(), strict=True):
        first, second = a.metrics[metric].value, b.metrics[metric].value
        low, high = interval(first - second, draws, n_classes, least=-1.0)
        differences[metric] = Difference(first, second, first - second, low, high, p_value)
    return Comparison(differences, names, n_images=len(a.classes), n_classes=int(a.classes.max()) + 1)


def _recall_parts(a: Scores, b: Scores, ks: list[int], samples: int, seed: int) -> Iterator[Part]:
    (hits_a, queries), (hits_b, _) = (hits_by_class(each.ranks, each.classes, ks, SINGLES[each.singles]) for each in (a, b))
    more = hits_a - hits_b  #                                                                         (C, s)
    has_queries = queries > 0
    draws = bootstrap(partial(weighted_recall, more[has_queries], queries[has_queries]), int(has_queries.sum()), samples, seed)
    for k, contributions, column in zip(ks, more.T, draws.T, strict=True):
        yield f"Recall@{k}", contributions, column, int(has_queries.sum())


def _agreement_parts(a: Scores, b: Scores, name: str, samples: int, seed: int) -> Iterator[Part]:
    table_a, table_b = contingency(a.classes, a.clusters[name]), contingency(b.classes, b.clusters[name])
    C = len(table_a.class_sizes)
    for kind, (weighted, without) in AGREEMENTS.items():
        metric = f"{kind}, {name}"
        d = a.metrics[metric].value - b.metrics[metric].value
        d_without = without(table_a) - without(table_b)  #                                            (C,)
        contributions = (d + (C - 1) * (d_without.mean() - d_without)) / C  #                         (C,)
        draws_a, draws_b = (bootstrap(partial(weighted, table), C, samples, seed) for table in (table_a, table_b))
        yield metric, contributions, draws_a - draws_b, C
