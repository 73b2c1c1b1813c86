"""Layout of a catalog: landmarks, the items between them, and what a change of the catalog leaves in place."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from liftedstruct import projection
from liftedstruct.projection import interpolate, tsne
from liftedstruct.retrieval import nearest_neighbors
from liftedstruct.service import layout
from liftedstruct.service.layout import Layout, arrange, choose_landmarks, read_layout
from liftedstruct.service.rows import Rows

N, CLASSES = 900, 30
RNG = np.random.default_rng(0)
LABELS = np.arange(N, dtype=np.int32) % CLASSES
X = (1.5 * RNG.normal(size=(CLASSES, 16))[LABELS] + RNG.normal(size=(N, 16))).astype(np.float32)


def rows_of(at: NDArray[np.int64], vectors: NDArray[np.float32] = X) -> Rows:
    names = [str(i) for i in at]
    return Rows(1, "v", at.astype(np.int64), names, [""] * len(at), LABELS[at], list(map(str, range(CLASSES))), vectors[at], {})


def overlap(places: NDArray[np.floating], vectors: NDArray[np.float32] = X) -> float:
    """Return the part of the 10 nearest neighbors of each item that are among the 10 nearest on the map."""
    near, shown = (nearest_neighbors(each.astype(np.float64), 10)[1] for each in (vectors, places))
    return float(np.mean([len({*a} & {*b}) / 10 for a, b in zip(near.tolist(), shown.tolist(), strict=True)]))


@pytest.fixture
def few_landmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "LANDMARKS", 300)
    monkeypatch.setattr(layout, "CHUNK", 250)
    monkeypatch.setattr(projection, "EARLY", 120)
    monkeypatch.setattr(projection, "LATE", 200)


def test_interpolation_of_one_point_by_hand() -> None:
    landmarks = np.array([[0.0], [1.0], [9.0]])
    places = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(interpolate(landmarks, places, np.array([[0.5]])), [[0.5, 0.0]], atol=1e-3)  # two are as near
    np.testing.assert_allclose(interpolate(landmarks[:1], places[:1], np.array([[7.0]])), places[:1])


@pytest.mark.usefixtures("few_landmarks")
def test_interpolated_items_are_near_their_neighbors(tmp_path: Path) -> None:
    made = arrange(rows_of(np.arange(N)), None, tmp_path / "map-1.safetensors")
    assert made.landmarks.sum() == 300
    assert made.places.min() >= 0
    assert made.places.max() <= 1
    ours, whole, chance = overlap(made.places), overlap(tsne(X)), 10 / (N - 1)
    assert ours > 20 * chance
    assert ours > 0.6 * whole
    rest = ~made.landmarks
    of_class = LABELS[nearest_neighbors(made.places.astype(np.float64), 1)[1][:, 0]] == LABELS
    assert of_class[rest].mean() > of_class[made.landmarks].mean() - 0.1


@pytest.mark.usefixtures("few_landmarks")
def test_the_same_layout_again(tmp_path: Path) -> None:
    rows = rows_of(np.arange(N))
    first, second = (arrange(rows, None, tmp_path / name) for name in ("a", "b"))
    assert first.places.tobytes() == second.places.tobytes()


def test_landmarks_are_spread_over_classes() -> None:
    labels = np.where(np.arange(5000) < 4900, 0, np.arange(5000) - 4900).astype(np.int32)  # one large class, 100 small ones
    chosen = choose_landmarks(labels, 400)
    assert len(np.unique(chosen)) == len(chosen) == 400
    assert (np.diff(chosen) > 0).all()
    assert set(labels[chosen]) == set(labels)
    assert np.array_equal(choose_landmarks(labels, 400), chosen)
    assert not np.array_equal(choose_landmarks(labels, 400, seed=1), chosen)
    assert choose_landmarks(labels, 9999).tolist() == list(range(5000))


@pytest.mark.usefixtures("few_landmarks")
def test_small_changes_leave_the_others_in_place(tmp_path: Path) -> None:
    file = tmp_path / "map-1.safetensors"
    before = arrange(rows_of(np.arange(800)), None, file)
    assert before.changed == 0
    vectors = X.copy()
    vectors[5] = X[6]  # an item with another image
    rows = rows_of(np.setdiff1d(np.arange(830), [10, 20]), vectors)  # 30 are new, two are removed
    after = arrange(rows, read_layout(file, 1), file)
    assert after.seqs.tolist() == rows.seqs.tolist()
    same = np.setdiff1d(np.arange(800), [5, 10, 20])
    where = dict(zip(after.seqs.tolist(), after.places.tolist(), strict=True))
    assert [where[i] for i in same] == before.places[same].tolist()
    assert np.linalg.norm(np.subtract(where[5], where[6])) < 0.05
    assert where[5] != where[6]
    assert after.changed == pytest.approx(1 - 797 / 828)
    assert 0 < after.changed < layout.OUT_OF_DATE
    assert arrange(rows, after, file) is after
    late = rows_of(np.arange(N))
    assert arrange(late, after, file).changed > layout.OUT_OF_DATE


@pytest.mark.usefixtures("few_landmarks")
def test_an_interrupted_layout_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, file = rows_of(np.arange(N)), tmp_path / "map-1.safetensors"
    whole = arrange(rows, None, tmp_path / "other")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(layout, "interpolate", killed)
        with pytest.raises(KeyboardInterrupt):
            arrange(rows, None, file)
    monkeypatch.setattr(layout, "tsne", killed)  # it is not computed again
    resumed = arrange(rows, read_layout(file, 1), file)
    assert resumed.places.tobytes() == whole.places.tobytes()
    assert resumed.changed == 0


def test_progress(tmp_path: Path, few_landmarks: None) -> None:
    parts: list[float] = []
    arrange(rows_of(np.arange(N)), None, tmp_path / "map", parts.append)
    assert parts == sorted(parts)
    assert parts[-1] == pytest.approx(1)
    assert len(parts) > 20


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_few_items(tmp_path: Path, n: int) -> None:
    made = arrange(rows_of(np.arange(n)), None, tmp_path / "map")
    assert made.places.shape == (n, 2)
    assert ((made.places >= 0) & (made.places <= 1)).all()
    assert len(np.unique(made.places, axis=0)) == n


@pytest.mark.usefixtures("few_landmarks")
def test_equal_images_are_apart(tmp_path: Path) -> None:
    vectors = X.copy()
    vectors[300:600] = X[0]
    made = arrange(rows_of(np.arange(N), vectors), None, tmp_path / "map")
    assert len(np.unique(made.places, axis=0)) > N - 5


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, Layout]:
    file = tmp_path / "map-1.safetensors"
    return file, arrange(rows_of(np.arange(8)), None, file)


def test_the_file_keeps_everything(kept: tuple[Path, Layout]) -> None:
    file, made = kept
    found = read_layout(file, 1)
    assert found is not None
    for name, value in vars(made).items():
        assert np.array_equal(getattr(found, name), value), name


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-9]),
        lambda file: file.write_bytes(file.read_bytes().replace(b'"total"', b'"tutti"')),
    ],
    ids=["missing", "empty", "cut", "without its total"],
)
def test_a_damaged_file_is_made_again(kept: tuple[Path, Layout], damage: Callable[[Path], object]) -> None:
    damage(kept[0])
    assert read_layout(kept[0], 1) is None


def test_a_layout_of_another_table_is_not_used(kept: tuple[Path, Layout]) -> None:
    assert read_layout(kept[0], 2) is None


def test_a_catalog_whose_items_are_all_new_gets_a_new_layout(kept: tuple[Path, Layout]) -> None:
    file, made = kept
    after = arrange(rows_of(np.arange(20, 30)), made, file)
    assert after.landmarks.all()
    assert after.changed == 0


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    made = arrange(rows_of(np.arange(8)), None, tmp_path / "missing" / "map")
    assert len(made.places) == 8
    replace(made, total=9).write(tmp_path / "missing" / "map")
