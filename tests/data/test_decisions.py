import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data.sets import noise
from liftedstruct.cli import main
from liftedstruct.data import Decision, PackedImages, add_decisions, check_dataset, read_decisions, read_images, undo_decision
from liftedstruct.runtime.atomic import locked


def make_folder(root: Path, classes: str = "abcd", n: int = 3) -> Path:
    for c, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(n):
            noise(10 * c + i).save(root / name / f"{i}.png")
    return root


def write(file: Path, *lines: dict[str, Any]) -> Path:
    add_decisions(file, [Decision(**each) for each in lines])
    return file


def classes_of(images) -> dict[str, str]:  # type: ignore[no-untyped-def]
    return {path: images.class_names[label] for path, label in zip(images.paths, images.labels, strict=True)}


# --- the file ------------------------------------------------------------------------------------------------------------


def test_decisions_are_read_as_written(tmp_path: Path) -> None:
    odd = Decision("relabel", 'a, "b"/ü\n.png', "id 1", "x", " y ", "labels", "now")
    add_decisions(tmp_path / "d.csv", [odd])
    add_decisions(tmp_path / "d.csv", [Decision("merge", product="x", value="y")])
    assert read_decisions(tmp_path / "d.csv") == [odd, Decision("merge", product="x", value="y")]
    with (tmp_path / "d.csv").open(newline="") as file:
        assert next(csv.reader(file)) == ["action", "path", "id", "product", "value", "kind", "time"]


def test_further_columns_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "d.csv"
    file.write_text('action,note,path\ndrop,"blurred, twice",0.png\n')
    add_decisions(file, [Decision("drop", "1.png", time="t")])
    with file.open(newline="") as stream:
        assert [row["note"] for row in csv.DictReader(stream)] == ["blurred, twice", ""]
    undo_decision(file)
    with file.open(newline="") as stream:
        assert [row["note"] for row in csv.DictReader(stream)] == ["blurred, twice"]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "d.csv"
    with locked(tmp_path / ".d.csv.lock", "writer"), pytest.raises(ValueError, match="one writer at a time"):
        add_decisions(file, [Decision("drop", "0.png")])
    assert not file.exists()


def test_undo_removes_what_was_written_together(tmp_path: Path) -> None:
    file = tmp_path / "d.csv"
    one, *two = (Decision("drop", f"{i}.png", time=time) for i, time in enumerate(("t", "u", "u")))
    add_decisions(file, [one])
    add_decisions(file, two)
    assert undo_decision(file) == two
    assert read_decisions(file) == [one]
    assert undo_decision(file) == [one]
    assert undo_decision(file) == []
    assert undo_decision(tmp_path / "missing.csv") == []
    write(file, {"action": "drop", "path": "a"}, {"action": "drop", "path": "b"})  # by hand, without a time
    assert len(undo_decision(file)) == 1


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("rename,a.png,,,b,,", "line 3: action must be one of keep, relabel, drop, merge, got 'rename'"),
        ("relabel,a.png,,,,,", "line 3: relabel must have a path"),
        ("merge,,,,b,,", "line 3: merge must have a product"),
        ("drop,,,,,,", "line 3: drop must have a path"),
        ("drop", "line 3: a row must have 7 columns, got 1"),
        ('drop,"a', "a row must be valid CSV"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, rule: str) -> None:
    file = write(tmp_path / "d.csv", {"action": "drop", "path": "a.png"})
    file.write_bytes(file.read_bytes() + line.encode())
    with pytest.raises(ValueError, match=rule) as caught:
        read_decisions(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    before = file.read_bytes()
    for change in (lambda: add_decisions(file, [Decision("drop", "b")]), lambda: undo_decision(file)):
        with pytest.raises(ValueError, match="line"):
            change()
    assert file.read_bytes() == before


# --- a dataset -----------------------------------------------------------------------------------------------------------


def test_relabel_drop_and_merge(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data")
    file = write(
        tmp_path / "d.csv",
        {"action": "relabel", "path": str(root / "a" / "0.png"), "value": "b"},  # absolute
        {"action": "drop", "path": "data/a/1.png"},  # from the folder of the file
        {"action": "relabel", "path": "b/2.png", "value": "new"},  # from the folder of the dataset
        {"action": "merge", "product": "d", "value": "c"},
        {"action": "drop", "id": "c/0.png"},  # by the id of a catalog
        {"action": "keep", "path": "c/1.png"},
    )
    images = read_images(root, decisions=file)
    assert classes_of(images) == {
        "a/0.png": "b",
        "a/2.png": "a",
        **dict.fromkeys(("b/0.png", "b/1.png"), "b"),
        "b/2.png": "new",
        **dict.fromkeys(("c/1.png", "c/2.png"), "c"),
        **{f"d/{i}.png": "c" for i in range(3)},
    }
    assert images.class_names == ("a", "b", "c", "new")
    assert images.kept == ("c/1.png",)
    assert images.warnings == ()
    assert sorted(path.name for path in root.rglob("*.png")) == sorted(["0.png", "1.png", "2.png"] * 4)


def test_the_last_decision_counts_and_merges_chain(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data")
    lines = [("a/0.png", "b"), ("a/0.png", "c")]
    file = write(tmp_path / "d.csv", *({"action": "relabel", "path": path, "value": value} for path, value in lines))
    write(file, {"action": "merge", "product": "c", "value": "d"}, {"action": "merge", "product": "d", "value": "b"})
    images = read_images(root, decisions=file)
    assert set(classes_of(images).values()) == {"a", "b"}
    assert classes_of(images)["a/0.png"] == "b"


def test_what_is_not_in_the_data_is_one_warning(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data")
    file = write(tmp_path / "d.csv", {"action": "drop", "path": "gone.png"}, {"action": "merge", "product": "e", "value": "a"})
    images = read_images(root, decisions=file)
    assert len(images) == 12
    [warning] = images.warnings
    assert "2 ('gone.png', 'e')" in warning


def test_the_split_stays_by_class(tmp_path: Path) -> None:
    for part, classes in (("train", "abc"), ("test", "de")):
        make_folder(tmp_path / "data" / part, classes)
    file = write(
        tmp_path / "d.csv",
        {"action": "relabel", "path": "train/a/0.png", "value": "d"},
        {"action": "relabel", "path": "test/e/0.png", "value": "new"},
        {"action": "relabel", "path": "train/a/1.png", "value": "new"},
    )
    images = read_images(tmp_path / "data", decisions=file)
    assert [images.class_names[c] for c in images.test_classes] == ["d", "e", "new"]
    [warning] = images.warnings
    assert "2 images move to another part of the split" in warning
    everything = write(tmp_path / "all.csv", *({"action": "merge", "product": each, "value": "a"} for each in "de"))
    with pytest.raises(ValueError, match="each part of the split"):
        read_images(tmp_path / "data", decisions=everything)


def test_products_of_a_catalog_are_folders(tmp_path: Path) -> None:
    """A catalog names products by folder, where a dataset may have other names, such as those below `train`."""
    for part, classes in (("train", "ab"), ("test", "cd")):
        make_folder(tmp_path / "data" / part, classes)
    file = write(tmp_path / "d.csv", {"action": "relabel", "path": "train/a/0.png", "value": "train/b"})
    write(file, {"action": "merge", "product": "test/c", "value": "test/d"})
    images = read_images(tmp_path / "data", decisions=file)
    assert images.class_names == ("a", "b", "d")


def test_commands_take_decisions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_folder(tmp_path / "data")
    Image.open(root / "a" / "0.png").save(root / "b" / "copy.png")
    assert main(["check", str(root)]) == 1
    file = write(tmp_path / "d.csv", {"action": "keep", "path": "b/copy.png", "kind": "duplicates"})
    assert main(["check", str(root), "--decisions", str(file)]) == 0
    write(file, {"action": "relabel", "path": "a/1.png", "value": "new"}, {"action": "drop", "path": "nothing.png"})
    command = ["prepare", str(root), "--size", "16", "--out", str(tmp_path / "out"), "--decisions", str(file)]
    assert main(command) == 0
    assert "13 images of 5 classes" in capsys.readouterr().out
    packed = PackedImages(tmp_path / "out")
    assert packed.class_names == ("a", "b", "c", "d", "new")
    assert np.bincount(packed.labels).tolist() == [2, 4, 3, 3, 1]
    assert main([*command[:-1], str(tmp_path / "none.csv")]) == 1
    assert "decisions must be an existing CSV file" in capsys.readouterr().err
    assert main(["prepare", "products:4", "--out", str(tmp_path / "p"), "--decisions", str(file)]) == 1


def test_kept_images_are_no_duplicates(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data", n=2)
    Image.open(root / "a" / "0.png").save(root / "a" / "again.png")
    file = write(tmp_path / "d.csv", {"action": "keep", "path": "a/again.png"})
    kinds = [
        {each.kind for each in check_dataset(read_images(root, decisions=d), progress=False).findings} for d in (None, file)
    ]
    assert "exact duplicates within a class" in kinds[0]
    assert "exact duplicates within a class" not in kinds[1]


def test_keep_of_a_label_does_not_hide_a_duplicate(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data", n=2)
    Image.open(root / "a" / "0.png").save(root / "a" / "again.png")
    for kind, kept in (("labels", False), ("duplicates", True)):
        add_decisions(tmp_path / f"{kind}.csv", [Decision("keep", str(root / "a" / "again.png"), kind=kind)])
        images = read_images(root, decisions=tmp_path / f"{kind}.csv")
        kinds = {each.kind for each in check_dataset(images, progress=False).findings}
        assert ("exact duplicates within a class" not in kinds) is kept
