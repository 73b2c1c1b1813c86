r"""A map of the embeddings: t-SNE, which keeps neighbors together and says little about what lies far apart.

.. math:: \min_Y \sum_{i \ne j} p_{ij} \log \frac{p_{ij}}{q_{ij}}, \qquad
          q_{ij} \propto (1 + \lVert y_i - y_j \rVert^2)^{-1}

:math:`p_{ij}` is large for neighbors in the embedding, :math:`q_{ij}` for neighbors in the plane. openTSNE minimizes it:
by Barnes-Hut trees as in the paper, or, where there are many points, by interpolation on a grid, which takes time in
proportion to their number. Two things are ours. The neighbors that :math:`p_{ij}` is made of are exact, from
:func:`liftedstruct.retrieval.nearest_neighbors`. And the start is the plane of the first two principal components with a
little noise, so that what is far apart begins far apart.
"""

import math

import numpy as np
from numpy.typing import NDArray

from liftedstruct.distances import unit_scale
from liftedstruct.retrieval import nearest_neighbors
from liftedstruct.runtime.checks import EmbeddingsLike, as_embeddings, as_number, check_count, check_finite
from liftedstruct.runtime.extras import require
from liftedstruct.runtime.progress import Bar, say
from liftedstruct.runtime.threads import limit_threads

__all__ = ["tsne"]

Array = NDArray[np.float64]

PLANE = 3  # so many points lie in a plane, and need no t-SNE to be shown in one
BARNES_HUT = 10_000  # up to so many points; interpolation beyond
EARLY, LATE = 250, 500  # iterations with p_ij exaggerated, so that clusters find each other, and without
START = 1e-4  # standard deviation of the first positions: t-SNE wants to begin small
JITTER = 1e-2  # of that, so that equal embeddings do not start at one point, where no gradient would part them
EVERY = 10  # iterations between two updates of the progress bar


def tsne(embeddings: EmbeddingsLike, *, seed: int = 0, perplexity: float = 30.0, progress: bool = False) -> NDArray[np.float32]:
    """Positions in the plane, (n, 2), in which the neighbors of an embedding are near it.

    The same seed gives the same bytes on the same machine, and scaling the embeddings by a power of two changes nothing.
    Up to three points are shown as they lie, in the plane of their principal components.

    Args:
        embeddings: (n, d), any float type.
        seed: of the noise at the start. Neighbors stay neighbors with another seed; where a group lies may change.
        perplexity: how many neighbors count, softly; with few points it is lowered to a third of the others.
        progress: whether to say how far it is.

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
        say(f"t-SNE: neighbors of {n:,} images")
    distances, indices = nearest_neighbors(X.numpy() / size, min(n - 1, int(3 * perplexity)))  #     2 x (n, k)
    nearest = library.nearest_neighbors.PrecomputedNeighbors(indices, distances)
    bar = Bar("t-SNE", EARLY + LATE, wanted=progress, unit="iterations")
    with limit_threads(n << 16) as threads, bar:  # one up to a thousand points; the positions are the same
        P = library.affinity.PerplexityBasedNN(perplexity=perplexity, n_jobs=threads, knn_index=nearest)
        model = library.TSNE(
            early_exaggeration_iter=EARLY,
            n_iter=LATE,
            negative_gradient_method="bh" if n <= BARNES_HUT else "fft",
            n_jobs=threads,
            callbacks=lambda iteration, error, Y: bar.advance(EVERY),  # and None goes on
            callbacks_every_iters=EVERY,
        )
        Y = model.fit(affinities=P, initialization=_start(plane, seed))  #                            (n, 2)
    return np.ascontiguousarray(Y, dtype=np.float32)


def _check_perplexity(perplexity: float) -> float:
    number = as_number(perplexity)
    if not 1 <= number < math.inf:
        raise ValueError(f"perplexity must be a finite number >= 1, got {perplexity!r}. 30 suits most.")
    return number


def _principal_plane(C: Array) -> Array:
    """Centred points in their first two principal components, each turned so that its largest entry is positive.  (n, 2)"""
    wide = C.shape[1] > C.shape[0]
    axes = np.linalg.svd(C, full_matrices=False)[2][:2].T if wide else np.linalg.eigh(C.T @ C)[1][:, :-3:-1]  # (d, 2)
    axes = axes * np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None], axis=0))
    plane = np.zeros((len(C), 2))
    plane[:, : axes.shape[1]] = C @ axes
    return plane


def _start(plane: Array, seed: int) -> Array:
    """Where the points begin: the principal plane made small, and some noise."""
    noise = np.random.default_rng(seed).normal(size=plane.shape)
    spread = plane[:, 0].std()
    return START * (plane / spread + JITTER * noise if spread else noise)
