"""Passing messages until they converge, and the search for the preference that gives K clusters."""

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

TIE_BREAK = 1e-4  # of the preference: what the points' preferences differ by, so that of two twins one is the exemplar
GOLDEN = 0.6180339887498949  # multiples of it, less their whole parts, fill the unit interval evenly, neighbors far apart
STARTED = 0.99  # share of a message that is no longer the zero it began as: before, a lull is not convergence
HURRY = 0.3  # of the iterations without a change, while K is only being searched for
RETURNS = 10  # to earlier sets of exemplars, after which messages count as oscillating
MOST_DAMPING = 0.995
MOST_STEPS = 40
TOLERANCE = 0.01  # relative error of K above which the nearest is no answer: a warning, or on a graph an error
NARROW = 1e-5  # width of a bracket, in the logarithm of the preference, at which the search ends


@dataclass(frozen=True)
class Step:
    """The result at one preference."""

    preference: float
    clustering: Clustering
    iterations: int
    converged: bool

    @property
    def n_clusters(self) -> int:
        """How many clusters there are."""
        return len(self.clustering.exemplars)


class PreferenceSearch:
    """Affinity propagation at one preference after another, each from the messages of the one before."""

    def __init__(
        self,
        similarities: Similarities,
        damping: float,
        max_iter: int,
        convergence_iter: int,
        progress: bool = False,
        unit: float = 1.0,  # of the similarities, beside those of the caller: what is said is on the caller's scale
    ) -> None:
        self.similarities, self.damping = similarities, damping
        self.max_iter, self.convergence_iter, self.progress, self.unit = max_iter, convergence_iter, progress, unit
        self.messages: Messages | None = None
        self.steps: list[Step] = []
        self.begin = time.monotonic()

    def step(self, preference: float, cold: bool = False, hurry: bool = False) -> Step:
        """Pass messages at this preference until they converge.

        Args:
            preference: of all points, but for what tells twins apart.
            cold: start from zero messages, not from those of the step before.
            hurry: be content with fewer iterations without a change.
        """
        preferences = _break_ties(self.similarities.n, preference)
        if cold:
            self.messages = None  # before the next are made: they are as large as the similarities
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
        """Iterate until the exemplars stay the same and every point's best choice is one of them.

        The second matters: before the first exemplar of a heap appears, nothing changes for long. Where the exemplars keep
        coming back to earlier sets, the messages are damped more.
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
        """The step whose number of clusters is K, or the nearest to it that there is.

        Args:
            K: number of clusters.
            guess: preference to begin with.
            largest: no similarity is larger in size.
            neighbors: of the graph, or None.
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
            raise _unreachable(K, n, neighbors, f"the fewest found are {nearest.n_clusters:,}")
        if abs(off) > TOLERANCE * K:
            warnings.warn(
                f"no preference was found that gives {K:,} clusters, {nearest.n_clusters:,} are the nearest to it. "
                "Ask for that many, or take it as it is.",
                stacklevel=3,
            )
        return nearest

    def _bracket(self, K: int, guess: float, largest: float) -> None:
        """Take steps until one has K clusters or the bracket around K is narrow; the larger x = log(-preference), the fewer."""
        least, most = math.log(1e-12 * largest + 1e-35), math.log(2 * self.similarities.n * largest + 1e-30)
        x = min(max(math.log(max(-guess, 1e-35)), least), most)
        many: tuple[float, int] | None = None  # x and the number of clusters, above K ...
        few: tuple[float, int] | None = None  # ... and below it
        stride, side = 1.2, 0
        for _ in range(MOST_STEPS):
            C = self.step(-math.exp(x), hurry=True).n_clusters
            if C == K:
                C = self.step(-math.exp(x)).n_clusters  # is it here to stay?
            if C == K:
                return
            side = max(side, 0) + 1 if C > K else min(side, 0) - 1  # how many steps in a row were on this side
            many, few = ((x, C), few) if C > K else (many, (x, C))
            if many and few:
                width = few[0] - many[0]
                if width < NARROW:
                    return
                share = math.log(many[1] / K) / math.log(many[1] / few[1])  # on a line in log-log
                x = many[0] + width * (0.5 if abs(side) > 2 else min(max(share, 0.1), 0.9))
            elif x == (most if C > K else least):
                return
            else:
                x = min(max(x + stride * math.copysign(max(abs(math.log(C / K)), 0.1), C - K), least), most)
                stride *= 1.5


def _rank(step: Step, K: int) -> tuple[int, float]:
    """The nearer to K the better, and then the larger the net similarity."""
    return abs(step.n_clusters - K), -step.clustering.net_similarity


def _all_exemplars(n: int, largest: float) -> Step:
    """Every point its own exemplar: the optimum of any positive preference."""
    preference = 1e-6 * largest if largest > 0 else 1.0
    points = np.arange(n)
    return Step(preference, Clustering(points, points, n * preference), 0, True)


def _check_graph(similarities: Similarities, K: int, neighbors: int | None) -> None:
    """K exemplars and their neighbors must be able to make up all points."""
    if neighbors is None:
        return
    n, most = similarities.n, math.floor(K * (1 + TOLERANCE))
    degrees = np.sort(similarities.degrees)[::-1]
    if (reach := int((degrees[:most] + 1).sum())) < n:
        raise _unreachable(K, n, neighbors, f"{K:,} points and their neighbors make up at most {reach:,} of {n:,}")


def _unreachable(K: int, n: int, neighbors: int, why: str) -> ValueError:
    needed = max(math.ceil(5 * n / K), 2 * neighbors)
    return ValueError(
        f"n_clusters must be within reach of the graph, {K:,} is not with {neighbors} neighbors: {why}. "
        f"Pass neighbors={min(needed, n - 1)}."
    )


def _break_ties(n: int, preference: float) -> Floats:
    """The preference of each point: lower by up to a ten thousandth, in an order that follows from the row number."""
    return (preference - TIE_BREAK * abs(preference) * (GOLDEN * np.arange(n) % 1)).astype(np.float32)
