import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from liftedstruct.retrieval import first_ranks, recall_at_k
from liftedstruct.retrieval.exact_distances import as_cpu_matrix
from liftedstruct.retrieval.recall import _first_ranks
from liftedstruct.runtime.progress import Bar
from retrieval import brute_force

Array = NDArray[np.floating]


@st.composite
def images(draw: st.DrawFn) -> tuple[Array, NDArray[np.int64]]:
    """Draw a few images in a few classes, with ties, duplicates, huge and tiny values, near the origin and far from it."""
    shape = draw(st.tuples(st.integers(2, 24), st.integers(1, 4)))
    elements = draw(
        st.sampled_from(
            [
                st.integers(-2, 2).map(float),
                st.floats(-1, 1, width=32),
                st.sampled_from([0.0, 1.0, 1.0 + 2.0**-20, 1.0 - 2.0**-20, -1.0]),
                st.sampled_from([0.0, 1e-30, -1e-30, 1.0, 3.0, 1e18, -1e30]),
            ]
        )
    )
    X = draw(hnp.arrays(np.float64, shape, elements=elements)) + draw(st.sampled_from([0.0, 1e3, 1e4]))
    X = X.astype(draw(st.sampled_from([np.float32, np.float64])))
    return X, draw(hnp.arrays(np.int64, shape[0], elements=st.integers(0, draw(st.integers(0, 6)))))


def with_blocks(X: Array, y: NDArray[np.int64], *blocks: int) -> NDArray[np.int64]:
    return _first_ranks(as_cpu_matrix(X), y, Bar("recall", len(X), wanted=False), *blocks)


@given(images(), st.integers(1, 9), st.integers(1, 9))
@settings(deadline=None, max_examples=80)
def test_equal_to_a_stable_argsort(case: tuple[Array, NDArray[np.int64]], height: int, width: int) -> None:
    X, y = case
    expected = brute_force.first_ranks(X, y)
    np.testing.assert_array_equal(with_blocks(X, y), expected)
    np.testing.assert_array_equal(with_blocks(X, y, height, width), expected)


@given(images())
@settings(deadline=None)
def test_recall_at_every_k(case: tuple[Array, NDArray[np.int64]]) -> None:
    X, y = case
    ranks = brute_force.first_ranks(X, y)
    ks = range(1, len(X) + 2)
    if not ranks.any():
        with pytest.raises(ValueError, match=r"a class with two images, got \d+ images of \d+ classes"):
            recall_at_k(X, y, ks)
        return
    recall = recall_at_k(X, y, ks)
    assert recall == {k: np.mean(ranks[ranks > 0] <= k) for k in ks}
    assert (recall.queries, recall.singles) == (int((ranks > 0).sum()), int((ranks == 0).sum()))
    missed = recall_at_k(X, y, ks, singles="miss")
    assert missed == {k: np.mean((ranks > 0) & (ranks <= k)) for k in ks}
    assert (missed.queries, missed.singles) == (len(X), recall.singles)


def kinds(name: str, n: int = 700) -> tuple[Array, NDArray[np.int64]]:
    """Return enough images for several blocks and strips."""
    rng = np.random.default_rng(0)
    X: Array = rng.standard_normal((n, 8)).astype(np.float32)
    y = rng.integers(0, n // 5, n)
    if name == "grid":
        X = rng.integers(0, 3, (n, 4)).astype(np.float32)
    elif name == "line":
        X = rng.integers(0, 50, (n, 1)).astype(np.float32)
    elif name == "far":
        X = X * 1e-3 + np.float32(1e4)
    elif name == "duplicates":
        X = X[rng.integers(0, 40, n)]
    elif name == "all equal":
        X[:] = X[0]
    elif name == "two far clusters":
        X = X * 1e-4 + np.where(np.arange(n) % 2, 100, -100).astype(np.float32)[:, None]
    elif name == "outliers":
        X[::100] *= 1e30
    elif name == "tiny":
        X = X.astype(np.float64) * 1e-200
    elif name == "subnormal":
        X = X.astype(np.float64) * 1e-310
    elif name == "huge":
        X = X.astype(np.float64) * 1e150
    elif name == "large classes":
        y = rng.integers(0, 2, n)
    elif name == "singles":
        y = np.where(rng.random(n) < 0.9, np.arange(n), n)
    elif name == "wide":
        X = rng.standard_normal((n, 300)).astype(np.float32)
    return X, y


@pytest.mark.parametrize(
    "name",
    [
        *("plain", "grid", "line", "far", "duplicates", "all equal", "two far clusters", "outliers", "tiny", "subnormal"),
        *("huge", "large classes", "singles", "wide"),
    ],
)
def test_exact_over_many_blocks(name: str) -> None:
    X, y = kinds(name)
    expected = brute_force.first_ranks(X, y)
    np.testing.assert_array_equal(with_blocks(X, y), expected)
    np.testing.assert_array_equal(with_blocks(X, y, 100, 300), expected)


def test_products_compared_naively_are_wrong_where_this_is_right() -> None:
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((100, 64))
    X = (np.repeat(centers, 2, axis=0) * 0.05 + rng.standard_normal((200, 64)) * 0.01 + 1000).astype(np.float32)
    y = np.arange(200) // 2
    sq = (X**2).sum(axis=1)
    D2 = sq[:, None] + sq - 2 * X @ X.T
    np.fill_diagonal(D2, np.inf)
    assert np.mean(y[D2.argmin(axis=1)] == y) < 0.5
    assert recall_at_k(X, y, [1]) == {1: 1.0}


def test_by_hand() -> None:
    X = np.array([[0.0], [1.0], [1.0], [3.0], [7.0]])
    # 0: 1 and 2 are tied at 1, 1 comes first; 1: 2 is at 0; 2: 1, of another class, is at 0, then 0 and 3 at 1 and 2
    assert first_ranks(X, [0, 1, 0, 1, 2]).tolist() == [2, 3, 2, 1, 0]
    assert recall_at_k(X, [0, 1, 0, 1, 2], (1, 2, 3)) == {1: 0.25, 2: 0.75, 3: 1.0}
    assert recall_at_k(X, [0, 1, 0, 1, 2], (1, 2, 3), singles="miss") == {1: 0.2, 2: 0.6, 3: 0.8}
    assert repr(recall_at_k(X, [0, 1, 0, 1, 2], (2,))) == "{2: 0.75}"


def test_all_images_equal() -> None:
    n = 2000
    y = np.arange(n) % 500  # the nearest image of the class has the lowest other index: i + 500 for the first, else i % 500
    i = np.arange(n)
    first = np.where(i < 500, i + 500, i % 500)
    np.testing.assert_array_equal(first_ranks(np.ones((n, 3)), y), first - (i < first) + 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_type_and_any_kind_of_label(dtype: torch.dtype) -> None:
    X, y = kinds("plain", 200)
    tensor = torch.from_numpy(X).to(dtype)
    expected = brute_force.first_ranks(tensor.double().numpy(), y)
    y64 = y.astype(np.int64)
    for labels in (
        y,
        y64 + 2**40,
        torch.from_numpy(y64),
        [f"class {each}" for each in y],
        y64.astype(np.uint64) + np.uint64(2**63),
    ):
        np.testing.assert_array_equal(first_ranks(tensor, labels), expected)
    np.testing.assert_array_equal(first_ranks(tensor.requires_grad_(), y), expected)


def test_layout_order_and_names_do_not_matter() -> None:
    X, y = kinds("plain")
    expected = first_ranks(X, y)
    wide = np.zeros((len(X), 2 * X.shape[1]), np.float32)
    wide[:, ::2] = X
    for same in (np.asfortranarray(X), wide[:, ::2], X[::-1].copy()[::-1], X.astype(">f4"), 8 * X):
        np.testing.assert_array_equal(first_ranks(same, y), expected)
    order = np.random.default_rng(1).permutation(len(X))
    np.testing.assert_array_equal(first_ranks(X[order], y[order]), expected[order])
    np.testing.assert_array_equal(first_ranks(X, 1000 - y), expected)


def test_squares_beyond_float32() -> None:
    X, y = kinds("plain", 200)
    np.testing.assert_array_equal(first_ranks(X * np.float32(1e30), y), brute_force.first_ranks(X * np.float32(1e30), y))


def test_autocast_changes_nothing_and_threads_are_as_before() -> None:
    X, y = kinds("plain", 1200)
    expected, threads = brute_force.first_ranks(X, y), torch.get_num_threads()
    with torch.autocast("cpu"):
        np.testing.assert_array_equal(first_ranks(X, y), expected)
        np.testing.assert_array_equal(first_ranks(X[:100], y[:100]), brute_force.first_ranks(X[:100], y[:100]))
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert torch.get_num_threads() == threads
    assert seen == [threads]


def test_one_class() -> None:
    X, _ = kinds("plain", 300)
    assert recall_at_k(X, np.zeros(300, np.int64)) == {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0}


X, Y = np.random.default_rng(0).standard_normal((6, 2)), [0, 0, 1, 1, 1, 0]
NAN = X.copy()
NAN[4, 1] = np.nan
NAN[5] = np.inf


@pytest.mark.parametrize("function", [first_ranks, recall_at_k])
@pytest.mark.parametrize(
    ("embeddings", "labels", "text"),
    [
        (NAN, Y, r"embeddings must be finite, but row 4 holds nan \(first of 2 such rows\)"),
        (NAN.astype(np.float16), Y, r"embeddings must be finite, but row 4 holds nan \(first of 2 such rows\)"),
        (X * 1e200, Y, r"embeddings must have squares that fit float64, got values up to .*e\+200\. Scale them down"),
        (X, Y[:5], r"labels must have shape \(m,\), one label per row of the embeddings: got \(5,\) for 6 rows"),
        (X[:0], [], r"embeddings must have shape \(m, d\) with m, d >= 1, got \(0, 2\)"),
        (X[:, :0], Y, r"embeddings must have shape \(m, d\) with m, d >= 1, got \(6, 0\)"),
        (X[0], Y, r"embeddings must have shape \(m, d\) with m, d >= 1, got \(2,\)"),
        (X.astype(np.int64), Y, r"embeddings must be of a float type, got int64"),
        (X, np.array(Y, float), r"labels must be integers or strings, got float64"),
    ],
)
def test_bad_input(function, embeddings, labels, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=text) as caught:
        function(embeddings, labels)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ks", "text"),
    [
        ((), r"ks must contain at least one number, got none\. Pass \(1, 2, 4, 8\)\."),
        ((1, 0), r"each of ks must be a whole number >= 1, got 0"),
        ((1.0,), r"each of ks must be a whole number >= 1, got 1\.0"),
        ((True,), r"each of ks must be a whole number >= 1, got True"),
        ("12", r"each of ks must be a whole number >= 1, got '1'"),
        (1, r"ks must be whole numbers, such as \(1, 2, 4, 8\), got 1\. Pass a list or a tuple\."),
    ],
)
def test_bad_ks(ks, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=text):
        recall_at_k(X, Y, ks)


def test_bad_choice_and_nothing_to_recall() -> None:
    with pytest.raises(ValueError, match=r"singles must be one of leave-out, miss, got 'left'\. Did you mean 'leave-out'\?"):
        recall_at_k(X, Y, singles="left")
    for singles in ("leave-out", "miss"):
        with pytest.raises(ValueError, match=r"a class with two images, got 6 images of 6 classes\. Add"):
            recall_at_k(X, range(6), singles=singles)
    with pytest.raises(ValueError, match=r"got 1 images of 1 classes"):
        recall_at_k(X[:1], [0])
    assert first_ranks(X[:1], [0]).tolist() == [0]
    assert first_ranks(X[:2], [0, 0]).tolist() == [1, 1]


def run(code: str, **environment: str) -> list[str]:
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment})
    assert child.returncode == 0, child.stderr
    return child.stdout.split()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc")
def test_memory_does_not_grow_with_the_matrix() -> None:
    code = """
import numpy as np
from pathlib import Path
from liftedstruct.retrieval import recall_at_k
def megabytes(field):
    return next(int(line.split()[1]) / 1024 for line in Path("/proc/self/status").read_text().splitlines() if field in line)
rng = np.random.default_rng(0)
X, y = rng.standard_normal((24_000, 32), dtype=np.float32), rng.integers(0, 5000, 24_000)
recall_at_k(X[:1500], y[:1500])
before = megabytes("VmRSS")
recall_at_k(X, y)
print(megabytes("VmHWM") - before)
"""
    (grown,) = map(float, run(code))
    assert grown < 40  # all distances in float32 would take 2,300 MB


@pytest.mark.slow
def test_the_second_process_compiles_nothing(tmp_path: Path) -> None:
    code = """
import numpy as np
from liftedstruct.retrieval import exact_distances, nearest_neighbors, neighbors, rank_kernels, recall_at_k
X = np.random.default_rng(0).standard_normal((300, 4), dtype=np.float32)
recall_at_k(X, np.arange(300) // 2)
nearest_neighbors(X, 3)
kernels = (
    rank_kernels.count, rank_kernels.nearest_positives, exact_distances.norms_into, exact_distances.scaled_into,
    neighbors.squares_of_lists,
)
print(sum(sum(each.stats.cache_hits.values()) for each in kernels))
print(sum(sum(each.stats.cache_misses.values()) for each in kernels))
"""
    assert run(code, NUMBA_CACHE_DIR=str(tmp_path)) == ["0", "5"]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")}
    assert written
    assert run(code, NUMBA_CACHE_DIR=str(tmp_path)) == ["5", "0"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")} == written


def test_the_bound_on_rounding_holds_and_is_not_idle() -> None:
    """Compare a_i·a_j - h_j in float32, in two orders of summation, with exact arithmetic."""
    from liftedstruct.retrieval.exact_distances import slack

    rng = np.random.default_rng(0)
    largest = 0.0
    for d in (1, 7, 64, 513):
        for _ in range(50):
            a, b = (rng.standard_normal((2, d)) * 10 ** rng.uniform(-2, 2, (2, 1))).astype(np.float32)
            true = math.fsum(a.astype(float) * b.astype(float)) - math.fsum(b.astype(float) ** 2) / 2
            half = np.float32(math.fsum(b.astype(float) ** 2) / 2)
            bound = slack(np.linalg.norm(a.astype(float)), np.linalg.norm(b.astype(float)), d, 0.0, 0.0)  # type: ignore[arg-type]
            for product in (np.dot(a, b), np.cumsum(a * b, dtype=np.float32)[-1]):
                error = abs(float(product - half) - true)
                assert error <= bound
                largest = max(largest, error / bound)
    assert largest > 0.005


def test_progress_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    X = np.random.default_rng(0).normal(size=(2500, 4))
    quiet = first_ranks(X, np.arange(2500) // 5)
    assert capsys.readouterr().err == ""
    assert (first_ranks(X, np.arange(2500) // 5, progress=True) == quiet).all()
    assert "recall: 2,500 of 2,500 images" in capsys.readouterr().err


@pytest.mark.parametrize("most", [1, 3, 20])
def test_ranks_up_to_a_limit(most: int) -> None:
    rng = np.random.default_rng(0)
    X, Q = rng.integers(-2, 3, (700, 4)).astype(np.float32), rng.integers(-2, 3, (1500, 4)).astype(np.float32)  # many ties
    y, own = rng.integers(0, 40, 700), rng.integers(0, 45, 1500)
    ranks = first_ranks(X, y, queries=Q, query_labels=own)
    limited = first_ranks(X, y, queries=Q, query_labels=own, most=most)
    within = ranks <= most
    assert 0.1 < within.mean() < 1
    assert np.array_equal(limited[within], ranks[within])
    assert (limited[~within] > most).all()
