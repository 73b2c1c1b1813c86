from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

from liftedstruct.clustering import nmi, pairwise_f1
from liftedstruct.clustering.cluster_metrics import contingency

PARTITIONS = st.lists(st.tuples(st.integers(0, 6), st.integers(-3, 3)), min_size=1, max_size=60)


def f1_by_pairs(labels: list[int], clusters: list[int]) -> float:
    """Compute F1 from the definition, pair by pair."""
    pairs = list(combinations(range(len(labels)), 2))
    right = sum(labels[i] == labels[j] and clusters[i] == clusters[j] for i, j in pairs)
    said = sum(clusters[i] == clusters[j] for i, j in pairs)
    true = sum(labels[i] == labels[j] for i, j in pairs)
    if not said and not true:
        return 1.0
    precision, recall = right / max(said, 1), right / max(true, 1)
    return 2 * precision * recall / (precision + recall) if right else 0.0


@given(PARTITIONS)
def test_nmi_equals_scikit_learn(points: list[tuple[int, int]]) -> None:
    labels, clusters = map(list, zip(*points, strict=True))
    expected = normalized_mutual_info_score(labels, clusters, average_method="arithmetic")
    assert nmi(labels, clusters) == pytest.approx(expected, abs=1e-12)


@given(PARTITIONS)
def test_f1_equals_a_loop_over_pairs(points: list[tuple[int, int]]) -> None:
    labels, clusters = map(list, zip(*points, strict=True))
    assert pairwise_f1(labels, clusters) == pytest.approx(f1_by_pairs(labels, clusters), abs=1e-12)


@given(PARTITIONS)
def test_contingency_counts_every_image_once(points: list[tuple[int, int]]) -> None:
    labels, clusters = map(list, zip(*points, strict=True))
    table = contingency(labels, clusters)
    assert table.n == len(points)
    assert all(table.counts > 0)
    for j, label in enumerate(sorted(set(labels))):
        for k, cluster in enumerate(sorted(set(clusters))):
            assert table.counts[(table.classes == j) & (table.clusters == k)].sum() == points.count((label, cluster))
    np.testing.assert_array_equal(np.bincount(table.classes, table.counts), table.class_sizes)
    np.testing.assert_array_equal(np.bincount(table.clusters, table.counts), table.cluster_sizes)


def test_by_hand() -> None:
    # Clusters {a, a, b} and {b}: the entropy of the classes is log 2, of the clusters (3/4) log (4/3) + (1/4) log 4,
    # I = (2/4) log (4·2 / (3·2)) + (1/4) log (4·1 / (3·2)) + (1/4) log (4·1 / (1·2)).
    labels, clusters = ["a", "a", "b", "b"], [5, 5, 5, 9]
    H = np.log(2) + 0.75 * np.log(4 / 3) + 0.25 * np.log(4)
    I = 0.5 * np.log(4 / 3) + 0.25 * np.log(2 / 3) + 0.25 * np.log(2)  # noqa: E741
    assert nmi(labels, clusters) == pytest.approx(2 * I / H, rel=1e-14)
    assert pairwise_f1(labels, clusters) == 2 * 1 / (
        3 + 2
    )  # one pair of a in a cluster; three pairs in clusters, two in classes


def test_exact_at_the_ends() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(300, size=5000)
    order = rng.permutation(5000)
    renamed = np.array([f"cluster {label * 7 % 300}" for label in labels])
    assert nmi(labels[order], renamed[order]) == 1.0
    assert pairwise_f1(labels[order], renamed[order]) == 1.0
    crossed = np.indices((20, 30)).reshape(2, -1)
    assert nmi(*crossed) == 0.0
    assert pairwise_f1(*crossed) == 0.0


def test_the_order_of_images_and_the_names_of_clusters_do_not_matter() -> None:
    rng = np.random.default_rng(1)
    labels, clusters = rng.integers(2**62, 2**62 + 40, size=1000), rng.integers(50, size=1000)
    order, names = rng.permutation(1000), rng.permutation(50)
    for metric in (nmi, pairwise_f1):
        expected = metric(labels, clusters)
        assert metric(labels[order], names[clusters][order]) == expected
        assert metric(torch.from_numpy(labels), torch.from_numpy(clusters)) == expected
        assert metric(labels.tolist(), [str(cluster) for cluster in clusters]) == expected
        assert metric(clusters, labels) == pytest.approx(expected, rel=1e-12)  # both are symmetric


def test_a_million_images_in_two_clusters_do_not_overflow() -> None:
    labels = np.zeros(1_000_000, dtype=np.int64)
    labels[0] = 1
    clusters = np.zeros_like(labels)
    n = 1_000_000
    assert pairwise_f1(labels, clusters) == (n - 1) * (n - 2) / (n * (n - 1) // 2 + (n - 1) * (n - 2) // 2)
    assert nmi(labels, clusters) == 0.0


@pytest.mark.parametrize("metric", [nmi, pairwise_f1, contingency])
@pytest.mark.parametrize(
    ("labels", "clusters", "text"),
    [
        (
            [0, 1],
            [0],
            r"labels and clusters must have the same shape \(n,\) with n >= 1, got \(2,\) and \(1,\)\. Pass a label and a",
        ),
        ([], [], r"labels and clusters must have the same shape \(n,\) with n >= 1, got \(0,\) and \(0,\)"),
        (np.zeros((2, 2), int), np.zeros((2, 2), int), r"with n >= 1, got \(2, 2\) and \(2, 2\)"),
        (np.zeros(2), [0, 0], r"labels must be integers or strings, got float64"),
        ([0, 0], np.zeros(2), r"clusters must be integers or strings, got float64"),
        ([0, 0], [0, "a"], r"clusters must be all integers or all strings, got int and str"),
        ([0, 0], torch.zeros(2), r"clusters must be integers or strings, got float32"),
    ],
)
def test_bad_input(metric, labels, clusters, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=text) as caught:
        metric(labels, clusters)
    assert "\n" not in str(caught.value)
