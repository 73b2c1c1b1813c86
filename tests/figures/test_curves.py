from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from numpy.typing import NDArray

from figures.figure_checks import HOSTILE, check_drawable, check_tidy, intervals_of, legend_of, lines_of, words_of, x_of, y_of
from liftedstruct.evaluation import Estimate, Scores
from liftedstruct.figures.curves import recall_curves, score_figure, training_curves
from liftedstruct.figures.published import Published, published_for
from liftedstruct.figures.style import COLORS, PAPER

NONE: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
LIFTED, TRIPLET, POOL5 = COLORS["lifted_struct"], COLORS["triplet"], COLORS["pool5"]
Triple = tuple[float, float, float]


def scores(recall: dict[int, Triple] | None = None, weights: str = "", **clusterings: tuple[Triple, Triple]) -> Scores:
    """Return scores from `recall` and {clustering: (F1, NMI)}."""
    return Scores(
        recall={k: Estimate(*three) for k, three in (recall or {}).items()},
        f1={name: Estimate(*f1) for name, (f1, _) in clusterings.items()},
        nmi={name: Estimate(*nmi) for name, (_, nmi) in clusterings.items()},
        protocol={"weights": weights},
        singles="leave-out",
        images={},
        classes=NONE,
        ranks=NONE,
        clusters=dict.fromkeys(clusterings, NONE),
    )


def some(value: float, clustering: str = "affinity") -> Scores:
    """Return Recall@1 and Recall@8 near the value, F1 at half and NMI at 90 % of it."""
    f1, nmi = ((part * value, part * value - 0.02, part * value + 0.03) for part in (0.5, 0.9))
    clusterings: dict[str, Any] = {clustering: (f1, nmi)}
    return scores({1: (value, value - 0.01, value + 0.02), 8: (value + 0.2, value + 0.15, value + 0.22)}, **clusterings)


PAPERS_GRID = {
    method: {size: some(base + 0.01 * step) for step, size in enumerate((64, 128, 256, 512))}
    for method, base in (("pool5", 0.40), ("contrastive", 0.30), ("triplet", 0.38), ("lifted_struct", 0.50))
}


def test_recall_against_k() -> None:
    figure = recall_curves({"lifted_struct": scores({1: (0.5, 0.48, 0.53), 4: (0.7, 0.69, 0.72), 2: (0.6, 0.57, 0.62)})})
    (axes,) = figure.axes
    (line,) = lines_of(axes, LIFTED)
    np.testing.assert_allclose(x_of(line), [1, 2, 4])
    np.testing.assert_allclose(y_of(line), [50, 60, 70])
    np.testing.assert_allclose(intervals_of(axes, LIFTED), [(1, 48, 53), (2, 57, 62), (4, 69, 72)])
    assert axes.get_xscale() == "log"
    assert axes.get_xticks().tolist() == [1, 2, 4]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "4"]
    low, high = axes.get_ylim()
    assert low < 48
    assert high > 72
    assert legend_of(figure) == ["lifted structured", "95 % confidence interval"]
    check_tidy(figure)


def test_each_method_has_the_k_that_it_was_measured_at() -> None:
    figure = recall_curves({"triplet": some(0.3), "lifted_struct": scores({1: (0.4, 0.4, 0.4), 1000: (0.9, 0.9, 0.9)})})
    (axes,) = figure.axes
    assert x_of(lines_of(axes, TRIPLET)[0]) == [1, 8]
    assert x_of(lines_of(axes, LIFTED)[0]) == [1, 1000]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "8", "1,000"]


def test_numbers_without_room_are_left_out_but_not_their_ticks() -> None:
    figure = recall_curves({"triplet": scores(dict.fromkeys(range(1, 33), (0.5, 0.4, 0.6)))})
    labels = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert len(labels) == 32
    assert labels[:3] == ["1", "2", "3"]
    assert 5 <= sum(bool(label) for label in labels) <= 16
    check_tidy(figure)


def test_an_interval_beside_its_value_is_drawn_where_it_is() -> None:
    """The interval of NMI is corrected for bias and need not contain the value."""
    (axes,) = recall_curves({"triplet": scores({1: (0.5, 0.52, 0.6), 2: (0.6, 0.5, 0.55)})}).axes
    np.testing.assert_allclose(intervals_of(axes, TRIPLET), [(1, 52, 60), (2, 50, 55)])


def test_published_points_are_hollow_and_say_where_they_are_from() -> None:
    rows = [
        Published("triplet", 512, "GoogLeNet", {1: 0.3, 2: 0.4}, "Somebody, 2020"),
        Published("lifted_struct", 512, "GoogLeNet", {1: 0.5, 2: 0.6}, "Somebody, 2020"),
        Published("lifted_struct", 64, "Inception-BN", {1: 0.45}, "Another, 2017"),
    ]
    figure = recall_curves({"lifted_struct": some(0.55)}, rows)
    (axes,) = figure.axes
    own, first, second = sorted(lines_of(axes, LIFTED), key=lambda line: line.get_zorder(), reverse=True)
    assert to_hex(own.get_markerfacecolor()) == LIFTED
    (theirs,) = lines_of(axes, TRIPLET)
    for line, x, y in ((theirs, [1, 2], [30, 40]), (first, [1, 2], [50, 60]), (second, [1], [45])):
        assert to_hex(line.get_markerfacecolor()) == PAPER
        np.testing.assert_allclose(x_of(line), x)
        np.testing.assert_allclose(y_of(line), y)
    assert first.get_marker() == own.get_marker() != theirs.get_marker()
    assert first._dash_pattern != second._dash_pattern  # type: ignore[attr-defined]
    assert first._dash_pattern == theirs._dash_pattern  # type: ignore[attr-defined]
    assert legend_of(figure) == [
        "triplet",
        "lifted structured",
        "95 % confidence interval",
        "published: Somebody, 2020, GoogLeNet, 512-d",
        "published: Another, 2017, Inception-BN, 64-d",
    ]
    check_tidy(figure)


def test_nothing_is_published_unless_it_is_passed() -> None:
    assert not [text for text in legend_of(recall_curves({"triplet": some(0.3)})) if "published" in text]


def test_f1_and_nmi_against_the_size() -> None:
    figure = score_figure({"triplet": {64: some(0.4), 512: some(0.5)}, "lifted_struct": {512: some(0.6), 64: some(0.52)}})
    f1, nmi, _ = figure.axes
    assert [axes.get_title() for axes in figure.axes[:2]] == ["F1, affinity propagation", "NMI, affinity propagation"]
    np.testing.assert_allclose(y_of(lines_of(f1, TRIPLET)[0]), [20, 25])
    np.testing.assert_allclose(y_of(lines_of(nmi, TRIPLET)[0]), [36, 45])
    np.testing.assert_allclose(y_of(lines_of(f1, LIFTED)[0]), [26, 30])
    np.testing.assert_allclose(intervals_of(f1, LIFTED), [(64, 24, 29), (512, 28, 33)])
    np.testing.assert_allclose(intervals_of(nmi, TRIPLET), [(64, 34, 39), (512, 43, 48)])
    assert f1.get_xticks().tolist() == [64, 512]


def test_what_was_not_measured_is_a_gap() -> None:
    without = scores({1: (0.5, 0.4, 0.6)})
    figure = score_figure(
        {
            "triplet": {64: some(0.4), 128: without, 256: some(0.5), 512: some(0.5)},
            "lifted_struct": {64: some(0.5), 512: some(0.6)},
        }
    )
    f1, *_ = figure.axes
    np.testing.assert_allclose(y_of(lines_of(f1, TRIPLET)[0]), [20, np.nan, 25, 25])
    np.testing.assert_allclose(y_of(lines_of(f1, LIFTED)[0]), [25, np.nan, np.nan, 30])
    assert [x for x, *_ in intervals_of(f1, TRIPLET)] == [64, 256, 512]
    assert f1.get_ylim()[0] > 10


def test_no_clustering_at_all_is_said() -> None:
    figure = score_figure({"lifted_struct": {64: scores({1: (0.5, 0.4, 0.6), 2: (0.6, 0.5, 0.7)})}})
    assert ["not evaluated" in words_of(axes) for axes in figure.axes] == [True, True, False]
    check_tidy(figure)
    check_tidy(score_figure({}))


def test_the_clustering_is_the_papers_if_it_was_run() -> None:
    both = scores(affinity=((0.2, 0.1, 0.3),) * 2, kmeans=((0.4, 0.3, 0.5),) * 2)
    f1 = score_figure({"triplet": {64: both, 128: both}}).axes[0]
    np.testing.assert_allclose(y_of(lines_of(f1, TRIPLET)[0]), [20, 20])
    assert score_figure({"triplet": {64: some(0.4, "kmeans")}}).axes[0].get_title() == "F1, k-means"


def test_pool5_has_no_sizes_and_is_a_level() -> None:
    figure = score_figure({"pool5": {1280: some(0.9)}, "lifted_struct": {64: some(0.5), 128: some(0.52)}})
    f1, _, recall = figure.axes
    (level,) = lines_of(f1, POOL5)
    np.testing.assert_allclose(y_of(level), [45, 45])
    (band,) = f1.patches
    box = band.get_extents().transformed(f1.transData.inverted())
    np.testing.assert_allclose([box.y0, box.y1], [43, 48])
    assert f1.get_xticks().tolist() == [64, 128]
    assert f1.get_ylim()[1] > 48
    np.testing.assert_allclose(y_of(lines_of(recall, POOL5)[0]), [90, 110])
    assert legend_of(figure)[:2] == ["pretrained (1,280-d)", "lifted structured"]


def test_pool5_is_untrained_if_its_weights_are_random() -> None:
    random = scores({1: (0.1, 0.1, 0.1)}, weights="random weights, seed 0")
    assert legend_of(score_figure({"pool5": {1280: random}}))[0] == "untrained"
    assert legend_of(recall_curves({"pool5": random}))[0] == "untrained"
    assert legend_of(recall_curves({"pool5": scores({1: (0.1, 0.1, 0.1)}, weights="a.pth")}))[0] == "pretrained"


def test_pool5_alone_is_a_point() -> None:
    f1, *_ = score_figure({"pool5": {1280: some(0.5)}}).axes
    assert x_of(lines_of(f1, POOL5)[0]) == [1280]
    assert "25.0" in words_of(f1)


def test_recall_is_shown_at_the_largest_size_that_most_have() -> None:
    grid = {
        "contrastive": {64: some(0.30), 128: some(0.31)},
        "triplet": {64: some(0.40), 128: some(0.41), 256: some(0.42)},
        "lifted_struct": {64: some(0.50), 512: some(0.53)},
    }
    figure = score_figure(grid)  # 64: three times
    assert figure.axes[2].get_title() == "Recall@K, 64-d"
    grid["lifted_struct"][128] = some(0.51)
    figure = score_figure(grid)  # 64 and 128: three times
    assert figure.axes[2].get_title() == "Recall@K, 128-d"
    np.testing.assert_allclose(y_of(lines_of(figure.axes[2], LIFTED)[0]), [51, 71])
    del grid["contrastive"][128]
    grid["triplet"][64] = grid["triplet"].pop(256)
    grid["contrastive"].pop(64)
    grid["contrastive"][32] = some(0.2)
    figure = score_figure(grid)
    assert figure.axes[2].get_title() == "Recall@K, 128-d"
    assert legend_of(figure)[0] == "contrastive (32-d)"
    np.testing.assert_allclose(y_of(lines_of(figure.axes[2], COLORS["contrastive"])[0]), [20, 40])


def test_the_papers_grid_with_all_that_is_published() -> None:
    figure = score_figure(PAPERS_GRID, published_for("CUB-200-2011"))
    f1, nmi, recall = figure.axes
    for axes in (f1, nmi):
        lines = [lines_of(axes, color)[0] for color in COLORS.values()]
        assert [x_of(line) for line in lines] == [[64, 128, 256, 512]] * 4
        assert len({line.get_marker() for line in lines}) == 4
    assert len(lines_of(recall, LIFTED)) == 3
    check_tidy(figure)


@pytest.mark.parametrize("methods", [1, 2, 4])
def test_one_size_and_one_k(methods: int) -> None:
    grid = {method: {64: some(0.3 + 0.1 * number)} for number, method in enumerate([*COLORS][-methods:])}
    figure = score_figure(grid)
    check_tidy(figure)
    assert "25.0" in words_of(figure.axes[0]) if methods == 4 else True
    check_tidy(recall_curves({method: scores({1: (0.5, 0.4, 0.6)}) for method in grid}))


def test_names_of_any_kind() -> None:
    figure = score_figure({name: {64: some(0.5), 128: some(0.4)} for name in HOSTILE})
    check_tidy(figure)
    texts = legend_of(figure)
    assert len(texts) == len(HOSTILE) + 1  # matplotlib skips labels that start with an underscore
    assert "<script>alert('x')</script>" in texts
    check_drawable(lambda: recall_curves({name: some(0.5) for name in HOSTILE}, published_for("CUB-200-2011")))
    check_tidy(training_curves({name: [log_line(1), log_line(2)] for name in HOSTILE}))


def test_many_methods_are_told_apart() -> None:
    (axes,) = recall_curves({f"run {number}": some(0.3 + 0.05 * number) for number in range(8)}).axes
    looks = {(line.get_color(), line.get_marker()) for line in axes.lines}
    assert len(looks) == 8


def log_line(step: int, loss: float = 1.0) -> dict[str, float]:
    return {"step": step, "loss": loss, "active_images": 0.75, "positive_distance": 2.0, "negative_distance": 5.0}


def test_training_curves() -> None:
    lines = [{"step": 0, "recall_at_1": 0.4}, log_line(1, 8.0), log_line(10, 4.0), {"step": 10, "recall_at_1": 0.55}]
    figure = training_curves({"lifted_struct": lines})
    loss, recall, active, distances = figure.axes
    for axes, x, y in (
        (loss, [1, 10], [8, 4]),
        (recall, [0, 10], [40, 55]),
        (active, [1, 10], [75, 75]),
    ):
        (line,) = lines_of(axes, LIFTED)
        np.testing.assert_allclose(x_of(line), x)
        np.testing.assert_allclose(y_of(line), y)
    near, far = lines_of(distances, LIFTED)
    np.testing.assert_allclose(y_of(near), [2, 2])
    np.testing.assert_allclose(y_of(far), [5, 5])
    assert near.get_linestyle() == "-" != far.get_linestyle()
    assert loss.get_ylim()[0] == distances.get_ylim()[0] == 0
    assert legend_of(figure) == ["lifted structured"]
    check_tidy(figure)


def test_a_long_log_has_its_running_mean() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(5, 1, size=200)
    figure = training_curves({"triplet": [log_line(step, value) for step, value in enumerate(y.tolist(), start=1)]})
    raw, mean = lines_of(figure.axes[0], TRIPLET)
    np.testing.assert_allclose(y_of(raw), y)
    expected = [y[max(0, i - 8) : i + 9].mean() for i in range(200)]
    np.testing.assert_allclose(y_of(mean), expected)


def test_nan_leaves_the_mean_whole() -> None:
    lines = [log_line(step, float("nan") if step == 50 else 3.0) for step in range(1, 201)]
    _, mean = lines_of(training_curves({"triplet": lines}).axes[0], TRIPLET)
    np.testing.assert_allclose(y_of(mean), 3.0)


def test_a_run_that_failed_and_one_that_was_never_validated() -> None:
    lines: list[dict[str, Any]] = [
        log_line(1),
        log_line(2),
        {"step": 3, "failed": "the loss must stay finite", "images": [1, 2]},
    ]
    figure = training_curves({"triplet": lines, "contrastive": [log_line(1), log_line(4)]})
    loss, recall, *_ = figure.axes
    assert "failed" in words_of(loss)
    assert [x_of(line) for line in lines_of(loss, TRIPLET)][-1] == [3, 3]
    assert "not logged" in words_of(recall)
    assert len(lines_of(loss, COLORS["contrastive"])) == 1
    check_tidy(figure)


def test_an_empty_log() -> None:
    figure = training_curves({"a run": []})
    assert all("not logged" in words_of(axes) for axes in figure.axes)
    check_tidy(figure)
