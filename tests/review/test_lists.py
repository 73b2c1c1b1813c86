import numpy as np
import pytest
from PIL import Image, ImageFilter

from liftedstruct.review import (
    KINDS,
    Collection,
    Look,
    Suggestion,
    classes_like_one,
    classes_like_two,
    collect,
    duplicates,
    label_scores,
    look_at,
    near_duplicates,
    outliers,
    wrong_labels,
)
from review.planted import clusters, collection, named

LISTS = (wrong_labels, classes_like_one, classes_like_two, outliers)


def all_lists(items: Collection) -> list[Suggestion]:
    return [each for make in LISTS for each in make(items)] + duplicates(items, near_duplicates(items))


def picture(seed: int, size: tuple[int, int] = (90, 70)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)


# --- wrong labels --------------------------------------------------------------------------------------------------------


def test_planted_wrong_labels_come_first_with_the_right_class() -> None:
    X, labels = clusters()
    given = labels.copy()
    given[[3, 40, 77]] = [5, 0, 2]
    items = collection(X, given)
    scores, others = label_scores(items)
    assert set(np.argsort(-scores)[:3]) == {3, 40, 77}
    assert [items.names[others[i]] for i in (3, 40, 77)] == named(labels[[3, 40, 77]])
    first = wrong_labels(items)[0]
    i = first.rows[0]
    assert (first.kind, first.action, first.value) == ("labels", "relabel", named(labels)[i])
    assert f"6 of the 6 images nearest to it are “{first.value}”, none “{named(given)[i]}”." == first.reason
    assert all(labels[row] == labels[i] for row in first.evidence)


def test_scores_are_those_of_a_regression_without_the_image() -> None:
    """The closed form equals fitting the ridge regression again without each image."""
    from liftedstruct.review.labels import FLOOR, RIDGES, RIVAL, SIGMA, SIZES, VOTE

    X, labels = clusters(3, 5, dim=4, spread=1.0)
    items = collection(X, labels, k=3)
    X = items.X - items.X.mean(axis=0)
    own = np.arange(len(X)), labels
    means, rivals = np.zeros(len(X)), np.zeros(len(X))
    for ridge, temperature in RIDGES:
        diagonal = ridge * np.trace(X.T @ X) / X.shape[1] * np.eye(X.shape[1])
        S = np.empty((len(X), 3))
        for i in range(len(X)):
            rest = np.arange(len(X)) != i
            Y = (labels[rest, None] == np.arange(3)).astype(float)
            S[i] = X[i] @ np.linalg.solve(X[rest].T @ X[rest] + diagonal, X[rest].T @ Y) / Y.sum(axis=0) ** SIZES
        P = np.exp(S / (temperature * np.median(S[own])))
        P /= P.sum(axis=1, keepdims=True)
        means += P[own] / len(RIDGES)
        P[own] = 0
        rivals += P.max(axis=1) / len(RIDGES)
    D = items.distances
    W = np.exp(-(D - D[:, :1]) / (SIGMA * np.median(D[:, 0])))
    vote = (W * (labels[items.neighbors] == labels[:, None])).sum(axis=1) / W.sum(axis=1)
    expected = 1 / (1 + (means + VOTE * vote + FLOOR) / (rivals + FLOOR) ** RIVAL)
    np.testing.assert_allclose(label_scores(items)[0], expected, atol=1e-4)


def test_order_and_names_do_not_matter() -> None:
    X, labels = clusters(spread=0.8, seed=3)
    labels[::9] = 1
    order = np.random.default_rng(0).permutation(len(X))
    renamed = np.random.default_rng(1).permutation(12)[labels]
    scores = label_scores(collection(X, labels))[0]
    np.testing.assert_allclose(label_scores(collection(X[order], renamed[order]))[0], scores[order], atol=1e-4)


def test_an_image_without_a_label_is_neither_wrong_nor_a_suggestion() -> None:
    X, labels = clusters(4, 6)
    words = named(labels)
    words[:6] = [""] * 6
    scores, others = label_scores(items := collect(X.astype(np.float32), words))
    assert not scores[:6].any()
    assert all(items.names[c] for c in others[6:])
    assert [each for each in classes_like_one(items) if "" in (each.value, items.names[items.labels[each.rows[0]]])] == []


# --- duplicates and leaks ------------------------------------------------------------------------------------------------


def test_copies_are_found_by_their_pixels() -> None:
    originals = [picture(seed) for seed in range(20)]
    small = originals[4].crop((2, 1, 88, 69)).resize((50, 40)).filter(ImageFilter.GaussianBlur(0.6))
    images = [*originals, small, originals[7]]
    X = np.random.default_rng(0).standard_normal((22, 8)).astype(np.float32)  # embeddings that do not help
    items = collect(X, ["a"] * 20 + ["a", "b"])
    pairs = near_duplicates(items, lambda row: look_at(images[row]))
    assert [(a, b) for _, a, b in pairs] == [(7, 21), (4, 20)]
    assert pairs[0][0] == pytest.approx(1, abs=1e-5)
    first, second = duplicates(items, pairs)
    assert (first.rows, first.evidence, first.action) == ((21,), (7,), "drop")
    assert first.reason == "Nearly the same image as “b” and as “a”: one must be wrong."
    assert second.reason == "Nearly the same image twice, of the same product."


def test_without_images_only_pairs_far_below_the_local_scale_are_listed() -> None:
    X, labels = clusters()
    X[9] = X[8] + 1e-4
    read: list[int] = []

    def look(row: int) -> Look | None:
        read.append(row)
        return None

    for found in (near_duplicates(collection(X, labels)), near_duplicates(collection(X, labels), look)):
        assert [(a, b) for _, a, b in found] == [(8, 9)]
    assert sorted(read) == list(range(len(X)))


def test_a_leak_drops_the_training_image() -> None:
    X, labels = clusters(4, 6)
    X[1], X[12] = X[0], X[13]
    parts = ["test", "train"] + [""] * 10 + ["test", "test"] + [""] * 10
    items = collection(X, labels, parts=parts)
    found = {each.kind: each for each in duplicates(items, near_duplicates(items))}
    assert found["leaks"].rows == (1,)
    assert found["leaks"].evidence == (0,)
    assert "in the test part and in another" in found["leaks"].reason
    assert found["duplicates"].rows == (13,)


# --- classes -------------------------------------------------------------------------------------------------------------


def test_mixed_classes_look_like_one() -> None:
    X, labels = clusters(10, 12)
    given = labels.copy()
    given[np.flatnonzero(labels == 4)[::3]] = 10  # 4 of the 12 images of class 4 under another name
    found = classes_like_one(items := collection(X, given))
    assert len(found) == 1
    assert (found[0].action, found[0].value) == ("merge", "class 4")
    assert set(given[list(found[0].rows)]) == {10}
    assert set(given[list(found[0].evidence)]) == {4}
    assert [items.names[items.labels[row]] for row in found[0].targets] == ["class 10"] * 4
    assert classes_like_one(collection(X, labels)) == []


def test_the_score_of_mixed_classes_by_hand() -> None:
    """On a line, a b a b: the nearest of each is the other class, in all four votes, so the fraction is the most there is."""
    X = np.array([[0.0], [1.0], [2.1], [3.3]])
    [found] = classes_like_one(collection(X, np.array([0, 1, 0, 1])))
    assert found.score == 1  # 1 / (2 / 3), at most 1
    assert found.reason == "“class 1” and “class 0” are mixed 100 % as much as if they were one product."


def test_two_groups_under_one_name_look_like_two() -> None:
    X, labels = clusters(10, 8)
    given = np.where(labels == 7, 6, labels)
    [found] = classes_like_two(collection(X, given))
    assert (found.action, found.value) == ("relabel", "class 6 2")
    assert set(labels[list(found.targets)]) in ({6}, {7})
    assert len(found.targets) == 8
    assert not set(found.targets) & set(found.evidence)


def test_wrong_labels_of_several_products_are_not_a_second_product() -> None:
    X, labels = clusters(10, 8)
    given = labels.copy()
    given[[0, 9, 18]] = 5
    assert classes_like_two(collection(X, given)) == []


# --- outliers and degenerate input ---------------------------------------------------------------------------------------


def test_an_outlier_is_far_from_all() -> None:
    X, labels = clusters(6, 10)
    X[17] += 30
    [found] = outliers(collection(X, labels))
    assert found.rows == (17,)
    assert found.action == "drop"
    assert found.score > 3


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("same_class", [True, False])
def test_few_images(n: int, same_class: bool) -> None:
    X, labels = np.eye(n, 4), np.zeros(n, int) if same_class else np.arange(n)
    assert all_lists(collection(X, labels)) == [] or n > 1


def test_no_images() -> None:
    empty = Collection(np.empty((0, 4)), np.empty(0, int), [], np.empty((0, 0)), np.empty((0, 0), int))
    assert all_lists(empty) == []


def test_equal_embeddings_are_duplicates_and_nothing_else() -> None:
    items = collection(np.ones((10, 4)), np.arange(10) % 3)
    assert {each.kind for each in all_lists(items)} - {"one"} == {"duplicates"}
    assert np.isfinite(label_scores(items)[0]).all()


def test_every_list_has_a_title() -> None:
    X, labels = clusters()
    assert {each.kind for each in all_lists(collection(X, labels))} <= KINDS.keys()
