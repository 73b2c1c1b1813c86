from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from liftedstruct import projection
from liftedstruct.projection import tsne
from liftedstruct.retrieval import precision_at_1
from liftedstruct.runtime import threads


def blobs(classes: int, images: int, d: int = 16, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), images)
    return 1.2 * rng.normal(size=(classes, d))[y] + rng.normal(size=(len(y), d)), y


X, Y = blobs(12, 15)


@pytest.fixture(scope="module")
def positions() -> NDArray[np.float32]:
    return tsne(X)


def test_classes_that_are_near_in_space_are_near_in_the_plane(positions: NDArray[np.float32]) -> None:
    in_space, in_plane = precision_at_1(X, Y), precision_at_1(positions, Y)
    by_components = precision_at_1(projection._principal_plane(X - X.mean(axis=0)), Y)
    assert positions.shape == (180, 2)
    assert positions.dtype == np.float32
    assert in_plane > in_space - 0.08
    assert in_plane > by_components + 0.3  # the initial positions


def test_interpolation_is_as_good(monkeypatch: pytest.MonkeyPatch, positions: NDArray[np.float32]) -> None:
    monkeypatch.setattr(projection, "BARNES_HUT", 100)
    monkeypatch.setattr(projection, "EARLY", 100)  # enough for few points; interpolation is as slow for them as for thousands
    monkeypatch.setattr(projection, "LATE", 40)
    interpolated = tsne(X)
    assert interpolated.tobytes() != positions.tobytes()
    assert precision_at_1(interpolated, Y) > precision_at_1(X, Y) - 0.08
    assert tsne(X).tobytes() == interpolated.tobytes()


def test_the_seed_decides(positions: NDArray[np.float32]) -> None:
    assert tsne(X).tobytes() == positions.tobytes()
    assert tsne(X, seed=1).tobytes() != positions.tobytes()


def test_the_number_of_threads_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "EARLY", 30)
    monkeypatch.setattr(projection, "LATE", 30)
    alone = tsne(X)
    monkeypatch.setattr(threads, "SMALL", 10)
    assert tsne(X).tobytes() == alone.tobytes()


def test_scale_and_type_do_not_matter(positions: NDArray[np.float32]) -> None:
    assert tsne(X * 2.0**-300).tobytes() == positions.tobytes()
    single = tsne(X.astype(np.float32))
    assert tsne(torch.from_numpy(X).float().requires_grad_()).tobytes() == single.tobytes()
    assert tsne(torch.from_numpy(X).float() * 2.0**20).tobytes() == single.tobytes()


@pytest.mark.parametrize("n", [4, 5, 6, 10, 31])
def test_few_points(n: int) -> None:
    Y = tsne(X[:n])
    assert Y.shape == (n, 2)
    assert np.isfinite(Y).all()
    assert len(np.unique(Y, axis=0)) == n


def test_up_to_three_points_are_shown_as_they_lie() -> None:
    assert tsne(np.array([[3.0, 4.0]])).tolist() == [[0.0, 0.0]]
    assert tsne(np.array([[5.0], [1.0]])).tolist() == [[2.0, 0.0], [-2.0, 0.0]]
    assert tsne(np.ones((3, 7))).tolist() == [[0.0, 0.0]] * 3


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 3), st.integers(1, 9), st.integers(0, 10**6))
def test_distances_of_two_or_three_points_are_kept(n: int, d: int, seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(n, d))
    Y = tsne(points).astype(np.float64)
    for i, j in combinations(range(n), 2):
        assert np.linalg.norm(Y[i] - Y[j]) == pytest.approx(np.linalg.norm(points[i] - points[j]), rel=1e-5, abs=1e-6)


def test_equal_embeddings_lie_together() -> None:
    Y = tsne(np.concatenate((X[:60], X[:60])))
    apart = np.linalg.norm(Y[:60] - Y[60:], axis=1)
    assert apart.max() < 0.2 * Y.std()
    assert np.isfinite(tsne(np.ones((40, 3)))).all()


def test_one_dimension_and_more_dimensions_than_points() -> None:
    line = np.linspace(0, 1, 40)[:, None]
    Y = tsne(line)
    steps = np.linalg.norm(np.diff(Y, axis=0), axis=1)
    assert steps.max() < 0.3 * np.linalg.norm(Y[0] - Y[-1])  # neighbors on the line are neighbors in the plane
    rng = np.random.default_rng(0)
    wide = np.concatenate((rng.normal(size=(10, 500)), 5 + rng.normal(size=(10, 500))))
    Y = tsne(wide)
    assert precision_at_1(Y, np.repeat([0, 1], 10)) == 1.0


def test_the_principal_plane_is_that_of_a_reference() -> None:
    from sklearn.decomposition import PCA

    for points in (X, X[:9]):  # tall, and wide
        ours = projection._principal_plane(points - points.mean(axis=0))
        theirs = PCA(2, svd_solver="full").fit_transform(points)
        np.testing.assert_allclose(np.abs(ours), np.abs(theirs), rtol=1e-8, atol=1e-10)


def test_an_outlier_does_not_carry_the_rest_away() -> None:
    far = X.copy()
    far[0] = 1e6
    positions = tsne(far)
    assert np.isfinite(positions).all()
    assert precision_at_1(positions[1:], Y[1:]) > precision_at_1(X, Y) - 0.1


def test_perplexity_says_how_many_neighbours_count(positions: NDArray[np.float32]) -> None:
    assert tsne(X, perplexity=5).tobytes() != positions.tobytes()
    assert tsne(X[:10], perplexity=30).tobytes() == tsne(X[:10], perplexity=3).tobytes()  # lowered to 9 / 3


def test_progress_is_said_and_changes_nothing(capsys: pytest.CaptureFixture[str], positions: NDArray[np.float32]) -> None:
    assert tsne(X, progress=True).tobytes() == positions.tobytes()
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0] == "t-SNE: finding neighbors of 180 images"
    assert lines[-1].startswith("t-SNE: 750 of 750 iterations, ")


def test_quiet_unless_asked(capfd: pytest.CaptureFixture[str]) -> None:
    tsne(X[:20])
    assert capfd.readouterr() == ("", "")


NAN = X.copy()
NAN[3, 1] = np.nan


@pytest.mark.parametrize(
    ("embeddings", "options", "text"),
    [
        (NAN, {}, r"embeddings must be finite, but row 3 holds nan \(first of 1 such rows\)"),
        (X[:0], {}, r"embeddings must have shape \(m, d\) with m, d >= 1, got \(0, 16\)"),
        (X[0], {}, r"embeddings must have shape \(m, d\)"),
        (X.astype(int), {}, r"embeddings must be of a float type, got int64"),
        (X, {"seed": -1}, r"seed must be a whole number >= 0, got -1"),
        (X, {"perplexity": 0.5}, r"perplexity must be a finite number >= 1, got 0\.5\. The default is 30\."),
        (X, {"perplexity": float("nan")}, r"perplexity must be a finite number >= 1, got nan"),
        (X, {"perplexity": "30"}, r"perplexity must be a finite number >= 1, got '30'"),
    ],
)
def test_bad_input(embeddings: NDArray[np.float64], options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        tsne(embeddings, **options)
    assert "\n" not in str(caught.value)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "openTSNE", None)
    with pytest.raises(ValueError, match=r"Run: pip install 'liftedstruct\[figures\]'"):
        tsne(X)
