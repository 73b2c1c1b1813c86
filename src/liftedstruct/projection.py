r"""t-SNE maps of embeddings, which keep neighbors together; large distances on the map mean little.

$$
\min_Y \sum_{i \ne j} p_{ij} \log \frac{p_{ij}}{q_{ij}}
$$

with $q_{ij}$ proportional to $(1 + \lVert y_i - y_j \rVert^2)^{-1}$. $p_{ij}$ is large for neighbors in the embedding space,
$q_{ij}$ for neighbors in the plane. openTSNE minimizes this objective with Barnes-Hut trees as in the paper or, for many
points, with interpolation on a grid, which takes time linear in their number. Two parts are specific to this package: the
neighbors behind $p_{ij}$ are exact, from `nearest_neighbors`, and the map is initialized with the first two principal
components plus a little noise, so that distant groups start far apart.

`interpolate` places further points among landmarks that are on a map already, as the mean of their nearest landmarks, weighted
by the $p_{j|i}$ of t-SNE. It takes time linear in their number.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from liftedstruct.distances import unit_scale
from liftedstruct.retrieval import nearest_neighbors
from liftedstruct.runtime.checks import EmbeddingsLike, as_embeddings, as_number, check_count, check_finite
from liftedstruct.runtime.extras import require
from liftedstruct.runtime.progress import Bar, say
from liftedstruct.runtime.threads import limit_threads

__all__ = ["interpolate", "tsne"]

Array = NDArray[np.float64]

PLANE = 3  # up to this many points always lie in a plane and need no t-SNE
BARNES_HUT = 10_000  # Barnes-Hut up to this many points, interpolation beyond
EARLY, LATE = 250, 500  # iterations with early exaggeration of p_ij, which forms clusters, and without
START = 1e-4  # standard deviation of the initial positions: t-SNE works best from a small start
JITTER = 1e-2  # noise relative to START: equal embeddings at one point would have no gradient to separate them
EVERY = 10  # iterations between updates of the progress bar
NEAREST, SHARPNESS = 15, 2.0  # landmarks that place a point, and the perplexity of their weights
HALVINGS = 40  # of the interval that holds the precision of a kernel


def tsne(
    embeddings: EmbeddingsLike,
    *,
    seed: int = 0,
    perplexity: float = 30.0,
    progress: bool = False,
    on_step: Callable[[float], object] = lambda part: None,
) -> NDArray[np.float32]:
    """Compute a t-SNE map of the embeddings in the plane.

    The same seed gives identical results on the same machine, and scaling the embeddings by a power of two changes nothing.
    Up to three points keep their exact distances: they are projected onto their principal components.

    Args:
        embeddings: (n, d), any float type.
        seed: random seed of the initial noise. Another seed may move groups on the map, but keeps neighbors together.
        perplexity: effective number of neighbors per point; with few points, lowered to (n - 1) / 3.
        progress: show a progress bar on stderr.
        on_step: called with the part of the iterations that is done, 0 to 1.

    Returns:
        The positions, (n, 2), in float32.

    Raises:
        ValueError: if openTSNE is not installed (extra `figures`), or if an input is invalid.

    Examples:
        >>> import numpy as np
        >>> a, b = tsne(np.array([[0.0, 0.0, 0.0], [0.0, 3.0, 4.0]]))  # two points, 5 apart
        >>> round(float(np.linalg.norm(a - b)), 3)
        5.0

    """
    X = as_embeddings(embeddings).detach().cpu()
    check_count("seed", seed, 0)
    perplexity = _check_perplexity(perplexity)
    points: Array = X.double().numpy()  #                                                             (n, d)
    points = points - points.mean(axis=0)
    check_finite(X, float(np.square(points).sum()))
    size, n = 1 / unit_scale(np.abs(points).max()), len(X)
    plane = _principal_plane(points / size)  #                                                        (n, 2)
    if n <= PLANE:
        return (size * plane).astype(np.float32)
    library = require("openTSNE", "figures")
    perplexity = min(perplexity, (n - 1) / 3)
    if progress:
        say(f"t-SNE: finding neighbors of {n:,} images")
    distances, indices = nearest_neighbors(X.numpy() / size, min(n - 1, int(3 * perplexity)))  #     2 x (n, k)
    nearest = library.nearest_neighbors.PrecomputedNeighbors(indices, distances)
    bar = Bar("t-SNE", EARLY + LATE, wanted=progress, unit="iterations")
    done = 0

    def advance(*_: object) -> None:  # returns None: continue
        nonlocal done
        done += EVERY
        bar.advance(EVERY)
        on_step(done / (EARLY + LATE))

    with limit_threads(n << 16) as threads, bar:  # one thread up to a thousand points; the positions are the same
        P = library.affinity.PerplexityBasedNN(perplexity=perplexity, n_jobs=threads, knn_index=nearest)
        model = library.TSNE(
            early_exaggeration_iter=EARLY,
            n_iter=LATE,
            negative_gradient_method="bh" if n <= BARNES_HUT else "fft",
            n_jobs=threads,
            callbacks=advance,
            callbacks_every_iters=EVERY,
        )
        Y = model.fit(affinities=P, initialization=_start(plane, seed))  #                            (n, 2)
    return np.ascontiguousarray(Y, dtype=np.float32)


def interpolate(
    landmarks: NDArray[np.floating], places: NDArray[np.floating], points: NDArray[np.floating]
) -> NDArray[np.float32]:
    """Place points on a map among landmarks, at the weighted mean of the nearest ones.

    The weights are the Gaussian kernel of t-SNE, whose width is chosen for each point so that its perplexity is 2.

    Args:
        landmarks: (l, d), embeddings that are on the map.
        places: (l, 2), their positions.
        points: (n, d), embeddings to place.

    Returns:
        The positions, (n, 2), in float32.

    """
    distances, near = nearest_neighbors(landmarks, min(NEAREST, len(landmarks)), queries=points)
    D2 = np.square(distances)
    D2 = (D2 - D2[:, :1]) / np.maximum(D2.mean(axis=1, keepdims=True), 1e-300)  #                    (n, k)
    wanted = math.log(min(SHARPNESS, D2.shape[1]))
    low, high = np.full((len(D2), 1), -30.0), np.full((len(D2), 1), 60.0)  # of the logarithm of the precision
    for _ in range(HALVINGS):
        precision = (low + high) / 2
        P = np.exp(-D2 * np.exp(precision))  # p_j|i before normalization
        P /= P.sum(axis=1, keepdims=True)
        entropy = -(P * np.log(np.maximum(P, 1e-300))).sum(axis=1, keepdims=True)
        low, high = np.where(entropy > wanted, precision, low), np.where(entropy > wanted, high, precision)
    Y: NDArray[np.float32] = np.einsum("nk,nkc->nc", P, places[near]).astype(np.float32)
    return Y


def _check_perplexity(perplexity: float) -> float:
    number = as_number(perplexity)
    if not 1 <= number < math.inf:
        raise ValueError(f"perplexity must be a finite number >= 1, got {perplexity!r}. The default is 30.")
    return number


def _principal_plane(C: Array) -> Array:
    """Project centered points onto two principal components, with signs that make their largest entries positive.    (n, 2)"""
    wide = C.shape[1] > C.shape[0]
    axes = np.linalg.svd(C, full_matrices=False)[2][:2].T if wide else np.linalg.eigh(C.T @ C)[1][:, :-3:-1]  # (d, 2)
    axes = axes * np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None], axis=0))
    plane = np.zeros((len(C), 2))
    plane[:, : axes.shape[1]] = C @ axes
    return plane


def _start(plane: Array, seed: int) -> Array:
    """Return the initial positions: the principal plane scaled down, plus noise."""
    noise = np.random.default_rng(seed).normal(size=plane.shape)
    spread = plane[:, 0].std()
    return START * (plane / spread + JITTER * noise if spread else noise)
