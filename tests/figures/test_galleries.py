import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from liftedstruct.data.image_set import Indices
from liftedstruct.figures.galleries import RULES, Queries, choose_queries, gallery
from liftedstruct.figures.style import FAINT, INK, NEGATIVE, POSITIVE, figure_bytes
from liftedstruct.retrieval import first_ranks, nearest_neighbors
from liftedstruct.runtime.checks import LabelsLike

Array = NDArray[np.float64]
Pixels = NDArray[np.uint8]


def flat(rows: Indices, side: int) -> Pixels:
    """Return images of one color each, which encodes the row."""
    colors = np.stack((rows, 255 - rows, np.full(len(rows), 128)), axis=1).astype(np.uint8)
    return np.broadcast_to(colors[:, None, None], (len(rows), side, side, 3)).copy()


def of_classes(sizes: Sequence[int], spread: float = 0.1, seed: int = 0) -> tuple[Array, Indices]:
    """Return embeddings and labels of classes of these sizes, each around its own point."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(sizes)), sizes)
    return rng.normal(size=(len(sizes), 4))[y] + spread * rng.normal(size=(len(y), 4)), y


def chosen(kind: str, X: Array, y: Indices, k: int = 5, **settings: int) -> Queries:
    distances, neighbors = nearest_neighbors(X, k)
    return choose_queries(kind, y, neighbors, distances, embeddings=X, **settings)


# Seven images: classes 0 (rows 0, 1, 2), 1 (rows 3, 4), 2 (rows 5, 6), with neighbors written by hand.
LABELS = np.array([0, 0, 0, 1, 1, 2, 2])
LISTS = np.array(
    [
        [1, 2, 3, 4, 5],  # both images of its class come first: a success
        [0, 3, 2, 4, 5],  # the first is right, the second wrong: neither
        [3, 0, 1, 4, 5],  # a failure
        [4, 0, 1, 2, 5],  # a success
        [5, 3, 0, 1, 2],  # a failure
        [0, 1, 2, 3, 4],  # a failure
        [5, 0, 1, 2, 3],  # a success
    ]
)
DISTANCES = np.tile(np.arange(1.0, 6.0), (7, 1))


def by_hand(kind: str, labels: LabelsLike = LABELS, scale: float = 1.0, seed: int = 0) -> Queries:
    """Choose queries from the lists above; the embeddings are only used for the nearest positive."""
    return choose_queries(kind, labels, LISTS, scale * DISTANCES, embeddings=np.arange(7.0)[:, None], seed=seed)


def test_successes_by_hand() -> None:
    queries = by_hand("successes")
    assert sorted(queries.rows.tolist()) == [0, 3, 6]
    at = queries.rows.tolist().index(0)
    assert queries.neighbors[at].tolist() == [1, 2, 3, 4, 5]
    assert queries.distances[at].tolist() == [1, 2, 3, 4, 5]
    assert queries.marks[at].tolist() == ["right", "right", "rest", "rest", "rest"]


def test_failures_by_hand() -> None:
    queries = by_hand("failures", [f"class {label}" for label in LABELS])
    assert sorted(queries.rows.tolist()) == [2, 4, 5]
    marks = dict(zip(queries.rows.tolist(), queries.marks.tolist(), strict=True))
    assert marks[2] == ["wrong", "right", "right", "rest", "rest"]
    assert marks[4] == ["wrong", "right", "rest", "rest", "rest"]
    assert marks[5] == ["wrong"] * 5


def test_instructive_by_hand() -> None:
    """On a line: ratios 1/2 and 1/3 for class 0 at 0 and class 1 at 1, 1/4 and 1/5 for class 2 at 20 and class 3 at 21.

    The smaller ratio of each pair of classes comes first, then the other of each pair.
    """
    X = np.array([[0.0], [-2.0], [1.0], [4.0], [20.0], [16.0], [21.0], [26.0]])
    y = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    queries = chosen("instructive", X, y)
    assert queries.rows.tolist()[:4] == [6, 2, 4, 0]
    assert queries.nearest_right.tolist()[:4] == [7, 3, 5, 1]
    assert queries.right_distances.tolist()[:4] == [5, 3, 4, 2]
    assert queries.right_ranks.tolist()[:4] == [3, 3, 2, 2]  # ties rank by row
    assert chosen("instructive", X, y, count=3).rows.tolist() == [6, 2, 4]


def test_the_nearest_right_image_is_found_wherever_it_ranks() -> None:
    X, y = of_classes([20] * 8, spread=1.5)
    D = np.sqrt(((X[:, None] - X[None]) ** 2).sum(axis=2))
    np.fill_diagonal(D, np.inf)
    right = np.where(y[:, None] == y[None], D, np.inf)
    for kind in RULES:
        queries = chosen(kind, X, y, count=100)
        assert len(queries) > 0
        np.testing.assert_array_equal(queries.nearest_right, right.argmin(axis=1)[queries.rows])
        np.testing.assert_allclose(queries.right_distances, right.min(axis=1)[queries.rows])
        np.testing.assert_array_equal(queries.right_ranks, first_ranks(X, y)[queries.rows])
    instructive = chosen("instructive", X, y, count=1)
    ratios = np.where(D.min(axis=1) < right.min(axis=1), D.min(axis=1) / right.min(axis=1), np.inf)
    assert instructive.rows.tolist() == [ratios.argmin()]


def test_equal_images_rank_by_index_as_everywhere() -> None:
    X, y = np.zeros((6, 2)), np.array([0, 1, 0, 1, 2, 2])
    queries = chosen("instructive", X, y)
    np.testing.assert_array_equal(queries.right_ranks, first_ranks(X, y)[queries.rows])
    assert not queries.right_distances.any()


@pytest.mark.parametrize("kind", ["successes", "failures"])
def test_each_class_in_turn(kind: str) -> None:
    X, y = of_classes([9] * 12, spread=0.6)
    for seed in range(5):
        rows = chosen(kind, X, y, count=1000, seed=seed).rows
        classes = y[rows]
        available = len(set(classes.tolist()))
        assert len(set(classes[:available].tolist())) == available, "one per class first"
        turns = [classes[:at].tolist().count(one) for at, one in enumerate(classes.tolist())]
        assert turns == sorted(turns)
        assert len(set(rows.tolist())) == len(rows)


def test_each_pair_of_classes_in_turn() -> None:
    X, y = of_classes([9] * 6, spread=1.0)
    queries = chosen("instructive", X, y, count=1000)
    pairs = [frozenset(pair) for pair in zip(y[queries.rows].tolist(), y[queries.neighbors[:, 0]].tolist(), strict=True)]
    turns = [pairs[:at].count(pair) for at, pair in enumerate(pairs)]
    assert turns == sorted(turns)
    ratio = queries.distances[:, 0] / queries.right_distances
    first = turns.count(0)
    assert (np.diff(ratio[:first]) >= 0).all()
    assert ratio.max() <= 1


def test_the_seed_decides_and_nothing_else() -> None:
    X, y = of_classes([10] * 30, spread=0.5)
    for kind in RULES:
        one, same, other = (chosen(kind, X, y, seed=seed) for seed in (3, 3, 4))
        np.testing.assert_array_equal(one.rows, same.rows)
        assert one.rule == same.rule
        assert (one.rows.tolist() == other.rows.tolist()) == (kind == "instructive")
        assert chosen(kind, X, y, count=3, seed=3).rows.tolist() == one.rows.tolist()[:3]


@pytest.mark.slow
@given(st.integers(2, 30), st.integers(1, 6), st.integers(1, 7), st.integers(0, 9))
@settings(deadline=None, max_examples=40)
def test_every_choice_keeps_its_rule(n: int, classes: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, y = rng.integers(0, 4, (n, 2)).astype(float), rng.integers(0, classes, n)
    k = min(k, n - 1)
    for kind in RULES:
        queries = chosen(kind, X, y, k=k, count=n)
        assert queries.neighbors.shape == (len(queries), min(k, 5))
        fits = 0
        for row in range(n):
            mates = int((y == y[row]).sum()) - 1
            first = [bool(y[j] == y[row]) for j in nearest_neighbors(X, k)[1][row][:5]]
            fits += mates > 0 and (all(first[:mates]) if kind == "successes" else not first[0])
        assert len(queries) == fits


def test_rules_are_sentences_that_say_what_was_done() -> None:
    X, y = of_classes([6, 6], spread=0.01)
    for kind in RULES:
        rule = chosen(kind, X, y, seed=5).rule
        assert rule.endswith(".")
        assert "{" not in rule
        assert ("seed 5" in rule) == (kind != "instructive")
    assert "whose five nearest neighbors are all of their class" in chosen("successes", X, y).rule
    assert "whose three nearest neighbors are all of their class" in chosen("successes", X, y, k=3).rule
    assert "whose nearest neighbor is of their class" in chosen("successes", X, y, k=1).rule


def test_one_class_no_failures_and_only_single_images() -> None:
    X, _ = of_classes([8])
    assert len(chosen("successes", X, np.zeros(8, np.int64))) == 8
    assert len(chosen("failures", X, np.zeros(8, np.int64))) == 0
    assert len(chosen("instructive", X, np.zeros(8, np.int64))) == 0
    for kind in RULES:
        assert len(chosen(kind, X, np.arange(8))) == 0
    assert chosen("failures", X[:2], np.array([0, 1]), k=1).neighbors.shape == (0, 1)
    assert chosen("successes", X[:2], np.array([1, 1]), k=1).rows.tolist() in ([0, 1], [1, 0])


def test_tensors_and_half_floats() -> None:
    X, y = of_classes([8] * 5, spread=1.0)
    half = torch.tensor(X, dtype=torch.float16)
    distances, neighbors = nearest_neighbors(half, 5)
    queries = choose_queries("instructive", torch.tensor(y), neighbors.numpy(), distances.numpy(), embeddings=half)
    assert queries.rows.tolist() == chosen("instructive", half.double().numpy(), y).rows.tolist()


X8, Y8 = of_classes([4, 4], spread=1.0)
D8, I8 = nearest_neighbors(X8, 5)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"kind": "success"}, r"kind must be one of failures, instructive, successes, got 'success'"),
        ({"count": 0}, r"count must be a whole number >= 1, got 0"),
        ({"seed": -1}, r"seed must be a whole number >= 0, got -1"),
        ({"embeddings": X8[:7]}, r"one label per row of the embeddings: got \(8,\) for 7 rows"),
        ({"embeddings": np.where(np.arange(8)[:, None] == 2, np.nan, X8)}, r"embeddings must be finite, but row 2 holds nan"),
        ({"labels": Y8[:7]}, r"one label per row of the embeddings: got \(7,\) for 8 rows"),
        ({"neighbors": I8[:7]}, r"neighbors must have shape \(n, k\).* 8 labels, got int64 of shape \(7, 5\)"),
        ({"neighbors": I8[:, :0]}, r"neighbors must have shape .* got int64 of shape \(8, 0\)"),
        ({"neighbors": np.where(I8 == 7, 8, I8)}, r"neighbors must .* 0 to 7 .* from 0 to 8"),
        ({"neighbors": D8}, r"neighbors must .* got float64"),
        ({"neighbors": np.zeros_like(I8)}, r"no image may be its own neighbor, but row 0 is"),
        ({"distances": D8[:, :4]}, r"distances must have the shape of neighbors, \(8, 5\), got \(8, 4\)"),
        ({"distances": np.full_like(D8, np.nan)}, r"distances must be finite floating-point numbers"),
    ],
)
def test_bad_input_to_choose(wrong: dict[str, Any], text: str) -> None:
    arguments = {"kind": "failures", "labels": Y8, "neighbors": I8, "distances": D8, "embeddings": X8}
    with pytest.raises(ValueError, match=text):
        choose_queries(**{**arguments, **wrong})


def pixels_of(figure: Figure) -> Pixels:
    with Image.open(io.BytesIO(figure_bytes(figure, "png"))) as image:
        return np.asarray(image.convert("RGB"))


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts if text.get_text()]


def rgb(color: str) -> list[int]:
    return [round(255 * part) for part in to_rgb(color)]


def corner(q: int, column: int, side: int) -> tuple[int, int]:
    """Return the top left pixel of an image: margins 28 and 28 + 40, columns 24 apart and 30 more after the query."""
    return 28 + 40 + q * (side + 116), 28 + column * (side + 24) + (30 if column else 0) + (30 if column == 6 else 0)


HAND = by_hand("failures")
NAMES = ("ants", "bees", "cats")


def test_every_picture_lands_in_its_place_with_its_frame_and_mark() -> None:
    side = 80
    pixels = pixels_of(gallery(HAND, flat, LABELS, NAMES, side=side))
    colors = {"right": POSITIVE, "wrong": NEGATIVE, "rest": FAINT}
    for q in range(3):
        for column in range(6):
            top, left = corner(q, column, side)
            row = HAND.neighbors[q, column - 1] if column else HAND.rows[q]
            picture = pixels[top : top + side, left : left + side]
            assert picture[40:, 40:].reshape(-1, 3).tolist() == [[row, 255 - row, 128]] * 1600
            assert pixels[top - 8, left + 20].tolist() == [255, 255, 255], "white around it"
            if not column:
                assert picture.reshape(-1, 3).tolist() == [[row, 255 - row, 128]] * side**2, "no mark on the query"
                assert pixels[top + 20, left - 1].tolist() == rgb(INK)
                continue
            mark = HAND.marks[q, column - 1]
            for y, x in ((-3, 20), (side + 2, 20), (20, -3), (20, side + 2)):
                assert pixels[top + y, left + x].tolist() == rgb(colors[mark])
            badge = picture[:36, :36]
            assert badge[1, 1].tolist() == rgb(colors[mark])
            white = (badge == 255).all(axis=2)
            assert white[18, 18] == (mark != "right"), "a cross and a dash pass through the center"
            assert white[11, 11] == white[24, 24] == (mark == "wrong")
            assert white[18, 11] == (mark == "rest")
            assert white[11, 26] == (mark != "rest")


def test_distances_and_class_names_are_beneath() -> None:
    queries = by_hand("failures", scale=123.45, seed=1)
    texts = texts_of(gallery(queries, flat, LABELS, NAMES))
    assert texts[:2] == ["query", "5 nearest neighbors, nearest first"]
    expected = []
    for q, row in enumerate(queries.rows):
        expected.append(NAMES[LABELS[row]])
        for place, distance in enumerate(["123", "247", "370", "494", "617"]):
            expected += [distance, NAMES[LABELS[queries.neighbors[q, place]]]]
    assert texts[2 : 2 + len(expected)] == expected
    legend = ["same class", "other class", "other class, after all images of the query's class"]
    assert texts[2 + len(expected) : 5 + len(expected)] == legend
    assert " ".join(texts[5 + len(expected) :]) == queries.rule


def test_the_nearest_right_image_has_a_column_where_it_is_not_among_the_five() -> None:
    X = np.array([[0.0], [100.0], *[[value] for value in np.linspace(1, 9, 18)]])
    y = np.array([0, 0] + [1] * 18)
    queries = chosen("instructive", X, y)
    figure = gallery(queries, flat, y, NAMES)
    texts = texts_of(figure)
    assert "nearest positive" in texts
    at = queries.rows.tolist().index(0)
    assert queries.right_ranks[at] == 19
    assert "100, rank 19" in texts
    pixels = pixels_of(figure)
    top, left = corner(at, 6, 208)
    assert pixels[top + 150, left + 150].tolist() == [1, 254, 128]
    assert pixels[top + 150, left - 3].tolist() == rgb(POSITIVE)
    assert "nearest positive" not in texts_of(gallery(chosen("successes", X, y), flat, y, NAMES))


@pytest.mark.parametrize("dpi", [72, 100, 120, 300])
def test_the_rule_is_inside_at_any_resolution(dpi: int) -> None:
    """Hinting makes text wider at some resolutions."""
    X, y = of_classes([5] * 10, spread=1.0)
    for kind in RULES:
        figure = gallery(chosen(kind, X, y, count=1), flat, y, "abcdefghij")
        figure.set_dpi(dpi)
        figure.draw_without_rendering()
        assert max(text.get_window_extent().x1 for text in figure.axes[0].texts) <= figure.bbox.x1


@pytest.mark.parametrize("count", [1, 2, 8])
def test_nothing_overlaps_and_nothing_leaves_the_picture(count: int) -> None:
    X, y = of_classes([5] * 10, spread=1.0)
    names = ["a" * 300, "two words", "", "W" * 40, "שלום", "😀 🦜", "$x_1$", "<script>", "a\nb", "x" * 18]
    queries = chosen("failures", X, y, count=count)
    figure = gallery(queries, flat, y, names)
    figure.set_dpi(200)
    figure.draw_without_rendering()
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    boxes = np.array([text.get_window_extent().extents for text in texts])  # left, bottom, right, top
    width, height = figure.get_size_inches() * 200
    assert (boxes >= 0).all()
    assert (boxes[:, 2] <= width).all()
    assert (boxes[:, 3] <= height).all()
    images = np.array([image.get_window_extent().extents for image in figure.axes[0].images])
    assert len(images) == len(queries) * (6 + ("nearest positive" in texts_of(figure)))
    for number, box in enumerate(boxes):
        others = np.concatenate((np.delete(boxes, number, axis=0), images))
        apart = (box[0] >= others[:, 2]) | (box[2] <= others[:, 0]) | (box[1] >= others[:, 3]) | (box[3] <= others[:, 1])
        assert apart.all(), texts[number].get_text()


@pytest.mark.parametrize("k", [1, 2, 4])
def test_fewer_neighbors(k: int) -> None:
    X, y = of_classes([4, 4], spread=0.01)
    queries = chosen("successes", X, y, k=k)
    figure = gallery(queries, flat, y, NAMES, side=80)
    assert len(figure.axes[0].images) == len(queries) * (1 + k)
    assert ("nearest neighbor" in texts_of(figure)) == (k == 1)
    pixels_of(figure)


def test_no_queries_are_a_note() -> None:
    X, _ = of_classes([8])
    queries = chosen("failures", X, np.zeros(8, np.int64))
    figure = gallery(queries, flat, np.zeros(8, np.int64), NAMES)
    assert texts_of(figure)[0] == "None: no query satisfies the rule."
    assert " ".join(texts_of(figure)[1:]) == queries.rule
    assert len(figure.axes[0].images) == 0
    assert pixels_of(figure).shape[0] < 200


@pytest.mark.parametrize("format", ["png", "svg", "pdf"])
def test_the_same_bytes_each_time(format: str) -> None:
    one, other = (figure_bytes(gallery(HAND, flat, LABELS, NAMES, side=64), format) for _ in range(2))
    assert one == other
    if format == "svg":
        assert one.count(b"<image ") == 18, "one element per image"


def test_names_are_data() -> None:
    names = ["<script>alert(1)</script>", "$\\frac{1}{2}$", "中文"]
    figure = gallery(HAND, flat, LABELS, names)
    assert "<script>" in "".join(texts_of(figure))
    assert "$\\frac{1}{2}$" in texts_of(figure)
    assert b"<script" not in figure_bytes(figure, "svg")


def test_bad_input_to_the_gallery() -> None:
    with pytest.raises(ValueError, match=r"labels must be .* 2 class names, 0 to 1, got int64 of shape \(7,\) from 0 to 2"):
        gallery(HAND, flat, LABELS, NAMES[:2])
    with pytest.raises(ValueError, match=r"labels must be .* 3 class names, 0 to 2, got <U1"):
        gallery(HAND, flat, np.array(["a", "b", "c"]), NAMES)
    with pytest.raises(ValueError, match=r"labels must cover all images.* up to 5, got 5"):
        gallery(HAND, flat, LABELS[:5], NAMES)
    with pytest.raises(ValueError, match=r"side must be a whole number >= 64, got 63"):
        gallery(HAND, flat, LABELS, NAMES, side=63)
    with pytest.raises(ValueError, match=r"uint8 of shape \(6, 64, 64, 3\), got uint8 \(6, 32, 32, 3\)"):
        gallery(HAND, lambda rows, side: flat(rows, side // 2), LABELS, NAMES, side=64)
