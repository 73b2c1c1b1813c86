"""Message passing until convergence, and the search for the preference that gives K clusters."""

import math
import time
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from liftedstruct.clustering.exemplars import Clustering, refine_exemplars
from liftedstruct.clustering.messages import Floats, Messages, Similarities
from liftedstruct.runtime.progress import say

__all__ = ["PreferenceSearch", "Step"]

TIE_BREAK = 1e-4  # maximum relative difference of the points' preferences, so that only one of two twins is an exemplar
GOLDEN = 0.6180339887498949  # fractional parts of its multiples fill the unit interval evenly, consecutive ones far apart
STARTED = 0.99  # c at which messages have left their zero start; below this, unchanged exemplars do not mean convergence
HURRY = 0.3  # fraction of convergence_iter that counts as convergence during the search for K
RETURNS = 10  # returns to earlier sets of exemplars after which messages count as oscillating
MOST_DAMPING = 0.995
MOST_STEPS = 40
TOLERANCE = 0.01  # relative error of K above which there is a warning or, on a graph, an error
NARROW = 1e-5  # width of the bracket, in the logarithm of the preference, at which the search ends


@dataclass(frozen=True)
class Step:
    """Result at one preference."""

    preference: float
    clustering: Clustering
    iterations: int
    converged: bool

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return len(self.clustering.exemplars)


class PreferenceSearch:
    """Affinity propagation at a sequence of preferences, each starting from the messages of the previous one."""

    def __init__(
        self,
        similarities: Similarities,
        damping: float,
        max_iter: int,
        convergence_iter: int,
        progress: bool = False,
        unit: float = 1.0,  # scale of the similarities relative to the caller's; progress is printed in the caller's
    ) -> None:
        self.similarities, self.damping = similarities, damping
        self.max_iter, self.convergence_iter, self.progress, self.unit = max_iter, convergence_iter, progress, unit
        self.messages: Messages | None = None
        self.steps: list[Step] = []
        self.begin = time.monotonic()

    def step(self, preference: float, cold: bool = False, hurry: bool = False) -> Step:
        """Pass messages at this preference until they converge.

        Args:
            preference: preference of all points, apart from the tie break.
            cold: start from zero messages instead of the messages of the previous step.
            hurry: require fewer iterations without a change.
        """
        preferences = _break_ties(self.similarities.n, preference)
        if cold:
            self.messages = None  # free them first: they are as large as the similarities
        if self.messages is None:
            self.messages = Messages(self.similarities, self.damping, preferences)
        else:
            self.messages.change_preferences(preferences)
        is_exemplar, iterations, converged = self._converge(
            self.messages, math.ceil(self.convergence_iter * (HURRY if hurry else 1))
        )
        step = Step(preference, refine_exemplars(self.similarities, is_exemplar, preference), iterations, converged)
        self.steps.append(step)
        if self.progress:
            seconds = time.monotonic() - self.begin
            say(
                f"affinity propagation, step {len(self.steps)}: preference {preference / self.unit:.4g}, "
                f"{iterations} iterations, {step.n_clusters:,} clusters, {seconds:.0f} s"
            )
        return step

    def _converge(self, messages: Messages, unchanged: int) -> tuple[NDArray[np.bool_], int, bool]:
        """Iterate until the exemplars no longer change and every point's best choice is one of them.

        The second condition matters: before the first exemplar of a cluster appears, nothing changes for many iterations. If
        the exemplars keep returning to earlier sets, the damping is increased.
        """
        messages.damping = self.damping
        seen: set[bytes] = set()
        last, same, returns = b"", 0, 0
        for iteration in range(1, self.max_iter + 1):
            is_exemplar = messages.iterate()
            now = np.packbits(is_exemplar).tobytes()
            same = same + 1 if now == last else 0
            if same >= unchanged and messages.c > STARTED and is_exemplar[messages.best].all():
                return is_exemplar, iteration, True
            if same == 0:
                returns += now in seen
                seen.add(now)
                last = now
            if returns >= RETURNS and messages.damping < MOST_DAMPING:
                messages.damping = min(MOST_DAMPING, 1 - (1 - messages.damping) / 2)
                seen.clear()
                returns = 0
        if not is_exemplar.any():
            is_exemplar[np.argmax(messages.a_own + messages.r_own)] = True
        return is_exemplar, self.max_iter, False

    def find(self, K: int, guess: float, largest: float, neighbors: int | None) -> Step:
        """Find the step with K clusters, or with the number of clusters nearest to K.

        Args:
            K: number of clusters.
            guess: initial preference.
            largest: upper bound on the magnitude of the similarities.
            neighbors: number of neighbors in the graph, or None for all pairs.
        """
        n = self.similarities.n
        if n == K:
            return _all_exemplars(n, largest)
        _check_graph(self.similarities, K, neighbors)
        self._bracket(K, guess, largest)
        nearest = min(self.steps, key=lambda step: _rank(step, K))
        cold = self.step(nearest.preference, cold=True)
        if _rank(cold, K) <= _rank(nearest, K):
            nearest = cold
        if n - K < K - nearest.n_clusters:
            nearest = _all_exemplars(n, largest)
        off = nearest.n_clusters - K
        if off > TOLERANCE * K and neighbors is not None:
            raise _unreachable(K, n, neighbors, f"the smallest number found is {nearest.n_clusters:,}")
        if abs(off) > TOLERANCE * K:
            warnings.warn(
                f"found no preference that gives {K:,} clusters; the nearest number is {nearest.n_clusters:,}. "
                "Request that number, or use this result.",
                stacklevel=3,
            )
        return nearest

    def _bracket(self, K: int, guess: float, largest: float) -> None:
        """Take steps until one has K clusters or the bracket around K is narrow.

        A larger x = log(-preference) gives fewer clusters.
        """
        least, most = math.log(1e-12 * largest + 1e-35), math.log(2 * self.similarities.n * largest + 1e-30)
        x = min(max(math.log(max(-guess, 1e-35)), least), most)
        many: tuple[float, int] | None = None  # x and number of clusters, above K ...
        few: tuple[float, int] | None = None  # ... and below K
        stride, side = 1.2, 0
        for _ in range(MOST_STEPS):
            C = self.step(-math.exp(x), hurry=True).n_clusters
            if C == K:
                C = self.step(-math.exp(x)).n_clusters  # confirm with full convergence
            if C == K:
                return
            side = max(side, 0) + 1 if C > K else min(side, 0) - 1  # consecutive steps on this side of K
            many, few = ((x, C), few) if C > K else (many, (x, C))
            if many and few:
                width = few[0] - many[0]
                if width < NARROW:
                    return
                share = math.log(many[1] / K) / math.log(many[1] / few[1])  # linear interpolation in log-log
                x = many[0] + width * (0.5 if abs(side) > 2 else min(max(share, 0.1), 0.9))
            elif x == (most if C > K else least):
                return
            else:
                x = min(max(x + stride * math.copysign(max(abs(math.log(C / K)), 0.1), C - K), least), most)
                stride *= 1.5


def _rank(step: Step, K: int) -> tuple[int, float]:
    """Return a sort key that prefers numbers of clusters near K, then larger net similarities."""
    return abs(step.n_clusters - K), -step.clustering.net_similarity


def _all_exemplars(n: int, largest: float) -> Step:
    """Return the step in which every point is its own exemplar, the optimum for any positive preference."""
    preference = 1e-6 * largest if largest > 0 else 1.0
    points = np.arange(n)
    return Step(preference, Clustering(points, points, n * preference), 0, True)


def _check_graph(similarities: Similarities, K: int, neighbors: int | None) -> None:
    """Raise an error if K exemplars and their neighbors cannot cover all points."""
    if neighbors is None:
        return
    n, most = similarities.n, math.floor(K * (1 + TOLERANCE))
    degrees = np.sort(similarities.degrees)[::-1]
    if (reach := int((degrees[:most] + 1).sum())) < n:
        raise _unreachable(K, n, neighbors, f"{K:,} points and their neighbors cover at most {reach:,} of {n:,}")


def _unreachable(K: int, n: int, neighbors: int, why: str) -> ValueError:
    needed = max(math.ceil(5 * n / K), 2 * neighbors)
    return ValueError(
        f"n_clusters must be reachable on the graph, but {K:,} is not with {neighbors} neighbors: {why}. "
        f"Pass neighbors={min(needed, n - 1)}."
    )


def _break_ties(n: int, preference: float) -> Floats:
    """Return the preference of each point, lowered by up to a ten-thousandth, in an order determined by the row number."""
    return (preference - TIE_BREAK * abs(preference) * (GOLDEN * np.arange(n) % 1)).astype(np.float32)
