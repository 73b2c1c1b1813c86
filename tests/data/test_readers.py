import io
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from liftedstruct.data import READERS, ImageSet, read_images
from liftedstruct.data.decoding import ImageError, load_rgb
from liftedstruct.data.image_files import SUFFIXES
from liftedstruct.data.readers import recognize

PNG = io.BytesIO()
Image.new("RGB", (2, 2), "red").save(PNG, "png")


def fill(root: Path, *files: str) -> Path:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(PNG.getvalue())
    return root


def table(root: Path, text: str | bytes, *files: str) -> Path:
    fill(root, *files)
    (root / "list.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return root / "list.csv"


def parts(images: ImageSet) -> dict[str, str]:
    """Map class names to parts of the split."""
    of = dict.fromkeys(images.class_names, "train")
    of |= {images.class_names[i]: "test" for i in images.test_classes}
    return of | {images.class_names[i]: "val" for i in images.validation_classes}


def classes(images: ImageSet) -> dict[str, str]:
    """Map paths to class names."""
    return {path: images.class_names[label] for path, label in zip(images.paths, images.labels, strict=True)}


def error(path: Path | str, kind: str | None = None, **settings: object) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the callers match the text
        read_images(path, kind, **settings)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- a folder of class folders -------------------------------------------------------------------------------------------


def test_folder(tmp_path: Path) -> None:
    fill(tmp_path, "b/2.png", "b/10.PNG", "a/x/1.jpg", "a/1.JPeG", "c/1.webp", "a b/1.bmp")
    images = read_images(str(tmp_path))
    assert (images.name, images.root, images.warnings) == ("folder", tmp_path, ())
    assert images.class_names == ("a", "a b", "a/x", "b", "c")
    assert images.paths == ("a/1.JPeG", "a b/1.bmp", "a/x/1.jpg", "b/10.PNG", "b/2.png", "c/1.webp")
    assert images.labels.tolist() == [0, 1, 2, 3, 3, 4]
    assert images.labels.dtype == images.test_classes.dtype == np.int64
    assert len(images.test_classes) == 2
    with images.source.open(images.paths[0]) as image:
        assert image.size == (2, 2)


def test_every_suffix_and_nothing_hidden(tmp_path: Path) -> None:
    fill(tmp_path, *(f"a/1{suffix}" for suffix in SUFFIXES), *(f"b/1{suffix.upper()}" for suffix in SUFFIXES))
    fill(tmp_path, ".git/1.png", "a/.hidden.png", ".hidden.txt", "a/._1.jpg", "a/.jpg")
    images = read_images(tmp_path)
    assert len(images) == 2 * len(SUFFIXES) == 18
    assert images.warnings == ()


def test_what_is_no_image_is_counted(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png", "b/1.png", "b/x.jpg/2.png", "b/notes.txt", "README", "loose.png", "a/png", "a/1", "a/2", "c/1")
    images = read_images(tmp_path)
    assert images.class_names == ("a", "b", "b/x.jpg")  # a folder name may have the suffix of an image
    assert images.warnings == (
        "files that are not images are left out: 6 ('README', 'a/1', 'a/2', 'a/png', 'b/notes.txt', ...)",
        "images outside any class folder are left out: 1 ('loose.png')",
    )
    assert images.extra == ("README", "a/1", "a/2", "a/png", "b/notes.txt", "c/1", "loose.png")  # the whole list
    assert images.missing == ()
    fill(tmp_path / "split", "train/a/1.png", "test/b/1.png", "train/0.png", "train/a/x.txt")
    assert read_images(tmp_path / "split").extra == ("train/a/x.txt", "train/0.png")


def test_what_is_named_as_an_image_and_is_none_is_listed(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png", "b/1.png", "b/full.jpg/deep/2.png")
    (tmp_path / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "a" / "self.png").symlink_to(tmp_path / "a" / "self.png")
    (tmp_path / "a" / "of links.jpg").mkdir()
    (tmp_path / "a" / "of links.jpg" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "b" / "empty.jpg").mkdir()  # a folder without images
    os.mkfifo(tmp_path / "b" / "pipe.png")
    images = read_images(tmp_path)
    reasons = {}
    for path in images.paths:
        try:
            load_rgb(images.source, path)
        except ImageError as refusal:
            reasons[path] = str(refusal)
    assert reasons.pop("a/self.png").startswith("cannot be read: too many levels of symbolic links")
    assert reasons == {
        "a/gone.png": "missing",
        "a/of links.jpg/gone.png": "missing",
        "b/pipe.png": "not a regular file",
    }
    assert images.class_names == ("a", "a/of links.jpg", "b", "b/full.jpg/deep")
    assert images.extra == ()


def test_links_are_followed_once(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", "1.png")
    root = fill(tmp_path / "root", "a/1.png", "b/1.png")
    (root / "c").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "1 again.png").symlink_to("1.png")
    (root / "a" / "loop").symlink_to(root)
    (root / "0").symlink_to(root / "b")  # sorts before b, but b is the real folder
    (root / "up").symlink_to(tmp_path)
    images = read_images(root)
    assert images.paths == ("a/1 again.png", "a/1.png", "b/1.png", "c/1.png")
    assert images.warnings == ("links to folders that were already visited are left out: 3 ('0', 'a/loop', 'up')",)


def test_links_in_circles_end(tmp_path: Path) -> None:
    for i in range(12):
        fill(tmp_path, f"{i}/1.png")
        for j in range(12):
            (tmp_path / f"{i}" / f"to {j}").symlink_to(tmp_path / f"{j}")
    assert len(read_images(tmp_path)) == 12


def test_unreadable_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "a/1.png", "b/1.png", "c/1.png")
    scandir = os.scandir
    closed = {tmp_path / "b"}

    def guarded(path: Path) -> Iterator[os.DirEntry[str]]:
        if path in closed:
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    images = read_images(tmp_path, "folder")
    assert images.class_names == ("a", "c")
    assert images.warnings == ("folders that cannot be read are left out: 1 ('b')",)
    closed.add(tmp_path)
    assert error(tmp_path, "folder").endswith("must be a readable folder, got: Permission denied. Check its permissions.")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_permissions(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png", "b/1.png", "c/1.png")
    (tmp_path / "b").chmod(0)
    try:
        assert read_images(tmp_path).class_names == ("a", "c")
    finally:
        (tmp_path / "b").chmod(0o700)


def test_odd_names_survive(tmp_path: Path) -> None:
    names = ["a b/c d.png", "new\nline/x\ny.png", "ünïcode/日本.png", os.fsdecode(b"raw\xff/\xfe.png"), "a,b/c;'\"d.png"]
    fill(tmp_path, *names)
    images = read_images(tmp_path)
    assert set(images.paths) == set(names)
    assert classes(images)[names[3]] == os.fsdecode(b"raw\xff")
    for path in images.paths:
        with images.source.open(path) as image:
            image.load()
    lines = [f'"{name}"'.replace('"d.', '""d.') + ',"' + name.split("/")[0] + '"' for name in names]
    (tmp_path / "list.csv").write_bytes(os.fsencode("path,label\n" + "\n".join(lines)))
    listed = read_images(tmp_path / "list.csv")
    assert list(listed.paths) == names
    assert set(listed.class_names) == set(images.class_names)
    assert "'new\\nline'" in error(tmp_path, test_classes=["new\nlin"])


def test_order_is_that_of_the_bytes(tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff")  # sorts before the emoji as a character, after it as a byte
    fill(tmp_path, *(f"{a}/{b}.png" for a in ("B", "a", "é", "😀", odd) for b in ("1", "10", "2")))
    images = read_images(tmp_path)
    assert images.class_names == ("B", "a", "é", "😀", odd)
    assert images.paths[:3] == ("B/1.png", "B/10.png", "B/2.png")


@pytest.mark.parametrize("below", ["", "data/", "x/y/"])
@pytest.mark.parametrize("val", ["val", "Valid", "validation"])
def test_folders_called_train_and_test_are_the_split(tmp_path: Path, below: str, val: str) -> None:
    fill(tmp_path, *(f"{below}{name}/1.png" for name in ("train/b", "train/a/x", "test/c", f"{val}/d")))
    images = read_images(tmp_path)
    assert parts(images) == {"a/x": "train", "b": "train", "c": "test", "d": "val"}
    assert images.paths == tuple(f"{below}{name}/1.png" for name in ("train/a/x", "train/b", "test/c", f"{val}/d"))
    assert "validation must not be set for data with its own validation classes, such as" in error(tmp_path, validation=0.5)
    text = error(tmp_path, test_classes=0.5)
    assert "test_classes must not be set for data with its own split, such as" in text
    assert text.endswith(" (folder), got 0.5. Omit it.")


def test_split_folders_with_more_beside_them(tmp_path: Path) -> None:
    fill(tmp_path, "train/a/1.png", "test/b/1.png", "train/loose.png", "notes/README.md", "LICENSE")
    images = read_images(tmp_path)  # a folder without images does not matter
    assert parts(images) == {"a": "train", "b": "test"}
    assert "images outside any class folder are left out: 1 ('train/loose.png')" in images.warnings
    fill(tmp_path, "more/1.png")
    images = read_images(tmp_path)
    assert images.class_names == ("more", "test/b", "train", "train/a")
    assert images.warnings[-1].startswith(
        "folders named train and test are not used as a split since there are other folders beside them: 3"
    )


@pytest.mark.parametrize("val", ["test", "val"])
def test_a_class_in_two_split_folders(tmp_path: Path, val: str) -> None:
    fill(tmp_path, *(f"{part}/{name}/1.png" for part in ("train", val) for name in ("a\nb", "c")), f"{val}/d/1.png")
    text = error(tmp_path)
    assert text.startswith("each class must be in one part of the split, got 'a\\nb' in ")
    assert {"train", val} <= set(text.replace(".", "").split())


def test_a_split_needs_train_and_test(tmp_path: Path) -> None:
    fill(tmp_path, "train/a/1.png", "val/b/1.png")
    assert " with none for test. Add" in error(tmp_path)
    (tmp_path / "train").rename(tmp_path / "test")
    assert "a split must have training and test classes," in error(tmp_path)
    assert " with none for train. Add" in error(tmp_path)


def test_folders_that_are_no_dataset(tmp_path: Path) -> None:
    empty = tmp_path / "em\npty"
    empty.mkdir()
    assert "em\\npty' must contain class folders with images" in error(empty)
    (empty / "a").mkdir()
    assert "got 0 images" in error(empty)
    loose = fill(tmp_path / "loose", "1.png", "2.png")
    for path in (loose, fill(tmp_path / "flat", "train/1.png", "test/1.png")):
        assert "must contain class folders with images, got 2 images" in error(path)
    one = fill(tmp_path / "one", "cat/1.png", "cat/2.png")
    assert error(one) == "a split requires at least two classes, got only 'cat'. Add a second class."


# --- a CSV file ----------------------------------------------------------------------------------------------------------


def test_csv(tmp_path: Path) -> None:
    absolute = fill(tmp_path / "far", "3.png") / "3.png"
    path = table(
        tmp_path / "near",
        f'\ufeffid, Label ,PATH,note\r\n1,cat,a.png,\r\n2, dog ,"b, c\nd.png","x ""y"""\r\n\r\n'
        f"3,cat,{absolute}\r\n4,10,../near/e/1.jpg,z",
        "a.png",
        "b, c\nd.png",
        "e/1.jpg",
    )
    images = read_images(path)
    assert (images.name, images.root, images.warnings) == ("csv", path, ())
    assert classes(images) == {"a.png": "cat", "b, c\nd.png": " dog ", str(absolute): "cat", "../near/e/1.jpg": "10"}
    assert images.class_names == (" dog ", "10", "cat")  # verbatim
    assert images.paths[2] == str(absolute)  # in the order of the lines
    assert len(images.test_classes) == 2
    for name in images.paths:
        with images.source.open(name) as image:
            assert image.size == (2, 2)


def test_labels_of_a_csv_are_not_stripped(tmp_path: Path) -> None:
    names = ("a/1.png", "a /1.png", " /1.png")
    path = table(tmp_path, "path,label\n" + "".join(f"{name},{name.split('/')[0]}\n" for name in names), *names)
    assert classes(read_images(path)) == classes(read_images(tmp_path)) == dict(zip(names, ("a", "a ", " "), strict=True))


def test_csv_with_a_split(tmp_path: Path) -> None:
    path = table(tmp_path, "path,label,split\n1.png,a,train\n2.png,b,TEST\n3.png,c,val\n4.png,d,validation\n5.png,a,train\n")
    fill(tmp_path, *(f"{i}.png" for i in range(1, 6)))
    images = read_images(path)
    assert parts(images) == {"a": "train", "b": "test", "c": "val", "d": "val"}
    assert images.train.tolist() == [0, 4]
    assert error(path, test_classes=["a"]).endswith(" (csv), got ['a']. Omit it.")


def test_csv_lists_an_image_twice(tmp_path: Path) -> None:
    path = table(tmp_path, "path,label\n1.png,a\n2.png,b\n1.png,a\n", "1.png", "2.png")
    images = read_images(path)
    assert images.paths == ("1.png", "2.png")
    assert images.warnings == ("repeated lines of the same image are left out: 1 ('1.png')",)


@pytest.mark.parametrize("other", ["./a/0.png", "a//0.png", "b/../a/0.png", "a/./0.png", "{root}/a/0.png"])
def test_csv_lists_an_image_by_two_paths(tmp_path: Path, other: str) -> None:
    other = other.format(root=tmp_path)
    path = table(tmp_path, f"path,label,split\na/0.png,a,train\n{other},b,test\n", "a/0.png", "b/0.png")
    assert f"line 3: an image must have one class, got '{other}' as 'b', and as 'a' on line 2." in error(path)
    path.write_text(f"path,label\n{other},a\nb/0.png,b\na/0.png,a\n")
    images = read_images(path)
    assert images.paths == (other, "b/0.png")
    assert images.warnings == ("repeated lines of the same image are left out: 1 ('a/0.png')",)


def test_csv_finds_links_and_files_at_the_top(tmp_path: Path) -> None:
    path = table(tmp_path, "path,label\n/1.png,a\n1.png,b\nlink.png,c\n", "1.png")
    (tmp_path / "link.png").symlink_to("1.png")
    assert "line 2: path must be an existing file, got '/1.png'" in error(path)  # not the 1.png beside the list
    (tmp_path / "list.csv").write_text("path,label\n1.png,b\nlink.png,c\n")
    assert len(read_images(path)) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have the comma-separated columns path and label, got the header 0 ()."),
        ("\n1.png,a\n", "must have the comma-separated columns path and label, got the header 0 ()."),
        ("path,label\n", "must list at least one image, got only a header. Add a line for each image."),
        ("file,class\n", "got the header 2 ('file', 'class'). Name the columns in the first line."),
        ("path;label\n", "comma-separated columns path and label, got the header 1 ('path;label')."),
        ("path,split\n", "got the header 2 ('path', 'split')."),
        ("path,label\n1.png,a\n\n2.png\n", "line 4: a row must have 2 columns, got 1. Quote fields that contain commas"),
        ("path,label,split\n1.png,a\n", "line 2: a row must have 3 columns, got 2."),
        ('path,label\n"1\n.png",a\n2.png,\n', "line 4: label must not be empty. Fill it in, or remove the line."),
        ("path,label\n,a\n", "line 2: path must not be empty. Fill"),
        ("path,label,split\n1.png,a,dev\n", "line 2: split must be one of train, test, val, query, gallery, got 'dev'."),
        ("path,label,split\n1.png,a,\n", "split must be one of train, test, val, query, gallery, got ''."),
        (
            "path,label,split\n1.png,a,train\n2.png,a,test\n",
            "line 3: each class must be in one part of the split, got 'a' in train and test. Split by class, not by image",
        ),
        ("path,label,split\n1.png,a,train\n2.png,b,val\n", "with none for test. Add some, or remove the split"),
        ("path,label,split\n1.png,a,test\n2.png,b,val\n", "with none for train. Add"),
        ("path,label,split\n1.png,a,test\n2.png,b,test\n", "a split must have training and test classes, "),
        ("path,label,split\n1.png,a,test\n2.png,a,test\n", "with none for train. Add"),
        ("path,label,split\n1.png,a,train\n", "with none for test. Add"),
        ("path,label,split\n1.png,a,val\n", "with none for test and train. Add"),
        ("path,label\n1.png,a\n1.png,b\n", "line 3: an image must have one class, got '1.png' as 'b', and as 'a' on line 2."),
        ("path,label\n1.png,a\nx\0.png,b\nno/2.png,b\n", "line 3: path must be an existing file, got 'x\\x00.png'"),
        ('path,label\n1.png,a\n"no\n.png",b\n', "line 3: path must be an existing file, got 'no\\n.png'. Paths are relative"),
        ("path,label\n1.png,a\nfolder.png,b\n", "line 3: path must be an existing file, got 'folder.png'."),
        ('path,label\n"1.png,a\n', "a row must be valid CSV, got: unexpected end of data. Close quotes, and double"),
        ("path,label\n1.png,a\n2.png,a\n", "a split requires at least two classes, got only 'a'. Add a second class."),
        (b"path,label\n1.png," + b"x" * 200_000, "line 2: a row must be valid CSV, got: field larger than field limit"),
        ("path,label\n1.png,a\n2.png,b\n".encode("utf-16"), "must have the comma-separated columns path and label"),
    ],
)  # fmt: skip
def test_bad_csv(tmp_path: Path, text: str | bytes, message: str) -> None:
    (tmp_path / "folder.png").mkdir()
    assert message in error(table(tmp_path, text, "1.png", "2.png", "1\n.png"))


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"path", b"label", b"split", b",", b"\n", b"\r", b'"', b"1.png", b"test", b"\0", b"\xff", b" "]))
)
def test_any_bad_csv_is_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    path = table(tmp_path_factory.getbasetemp(), b"path,label,split\n" + b"".join(pieces), "1.png")
    with pytest.raises(ValueError, match=r"\A[^\n]+\.\Z"):  # one image has one class, which cannot be in both train and test
        read_images(path)


# --- classes to test on --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twenty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("twenty"), *(f"class {i:02}/{j}.png" for i in range(20) for j in range(2)))


@settings(deadline=None)
@given(st.floats(0.001, 0.999), st.floats(0, 0.9), st.integers(0, 3))
def test_fractions(twenty: Path, test: float, validation: float, seed: int) -> None:
    if round(20 * test) > 18 and validation:
        return
    images = read_images(twenty, test_classes=test, validation=validation, seed=seed)
    assert len(images.test_classes) == min(19, max(1, round(20 * test)))
    assert (len(images.validation_classes) > 0) == (validation > 0)
    assert len(images.train_classes) > 0
    assert not set(images.train_classes) & {*images.test_classes, *images.validation_classes}
    again = read_images(twenty, test_classes=test, validation=validation, seed=seed)
    assert parts(again) == parts(images)


def test_seed_and_default(twenty: Path) -> None:
    assert len({tuple(read_images(twenty, seed=seed).test_classes) for seed in range(4)}) == 4
    assert len(read_images(twenty).test_classes) == 10
    assert parts(read_images(twenty)) == parts(read_images(twenty, test_classes=0.5, seed=0))


def test_class_names_that_are_alike_are_drawn_together(tmp_path: Path) -> None:
    names = ["Red chair", "red  chair", "café", unicodedata.normalize("NFD", "café"), *(f"class {i}" for i in range(8))]
    fill(tmp_path, *(f"{name}/{j}.png" for name in names for j in range(2)))
    for seed in range(20):
        images = read_images(tmp_path, validation=0.3, seed=seed)
        of = dict(zip(images.class_names, images.parts, strict=True))
        assert len(of) == 12
        assert set(of.values()) == {"train", "validation", "test"}
        assert (of[names[0]], of[names[2]]) == (of[names[1]], of[names[3]])
    warning = "class names that differ only in case, whitespace or Unicode normalization are kept in one part of the split: 4 ("
    assert [text.startswith(warning) for text in images.warnings] == [True]
    assert "4 ('Red chair', " in images.warnings[0]
    assert images.warnings[0].endswith("; merge or rename the classes")
    only = fill(tmp_path / "only", "Red/1.png", "red/1.png")
    assert "names differ in more than case, whitespace or Unicode normalization, got 1." in error(only)
    assert len(read_images(only, test_classes=["red"]).test_classes) == 1


def test_other_classes_are_drawn_as_ever(twenty: Path) -> None:
    images = read_images(twenty, test_classes=0.3, validation=0.2, seed=4)
    assert images.test_classes.tolist() == np.sort(np.random.default_rng([4, 1]).choice(20, 6, replace=False)).tolist()
    pool = np.setdiff1d(np.arange(20), images.test_classes)
    assert images.validation_classes.tolist() == np.sort(np.random.default_rng([4, 2]).choice(pool, 3, replace=False)).tolist()
    assert images.warnings == ()


def test_class_names_that_are_alike_and_separated_by_the_data(tmp_path: Path) -> None:
    warning = (
        "class names that differ only in case, whitespace or Unicode normalization are in different parts of the split: "
        "2 ('Red', 'red'); merge or rename the classes"
    )
    folders = fill(tmp_path / "folders", "train/Red/1.png", "train/blue/1.png", "test/red/1.png", "test/green/1.png")
    assert read_images(folders).warnings == (warning,)
    rows = "path,label,split\na.png,Red,train\nb.png,red,test\n"
    assert read_images(table(tmp_path, rows, "a.png", "b.png")).warnings == (warning,)
    named = fill(tmp_path / "named", "Red/1.png", "red/1.png", "blue/1.png")
    assert read_images(named, test_classes=["red"]).warnings == (warning,)


def test_test_classes_by_name(twenty: Path) -> None:
    for names in (["class 07", "class 02", "class 07"], ("class 02", "class 07"), np.array(["class 02", "class 07"])):
        assert read_images(twenty, test_classes=names).test_classes.tolist() == [2, 7]  # type: ignore[arg-type]
    assert read_images(twenty, test_classes="class 02").test_classes.tolist() == [2]


@pytest.mark.parametrize(
    ("test_classes", "message"),
    [
        (0.0, "must be between 0 and 1, got 0.0."),
        (1, "must be between 0 and 1, got 1."),
        (float("nan"), "must be between 0 and 1, got nan."),
        (True, "must be between 0 and 1, got True."),
        (["clas 01"], "test_classes must be names of classes in the data, got 'clas 01'. Did you mean 'class 01'?"),
        (["%"], "got '%'. The classes are 20 ('class 00', 'class 01', 'class 02', ...)."),
        ([], "test_classes must be some of the 20 classes, got 0. Leave some for training."),
        ([f"class {i:02}" for i in range(20)], "some of the 20 classes, got 20. Leave some for training."),
    ],
)
def test_bad_test_classes(twenty: Path, test_classes: object, message: str) -> None:
    assert message in error(twenty, test_classes=test_classes)


def test_bad_settings(twenty: Path) -> None:
    assert "must be between 0 and 1, got -0.5. Try 0.2." in error(twenty, validation=-0.5)
    assert "seed must be a whole number >= 0, got -1." in error(twenty, seed=-1)
    assert error(twenty, "folders") == (
        "kind must be one of cars, csv, cub, folder, online-products, products, got 'folders'. Did you mean 'folder'?"
    )


# --- recognition ---------------------------------------------------------------------------------------------------------


def test_readers_are_named() -> None:
    assert list(READERS) == ["folder", "csv", "cub", "cars", "online-products", "products"]


def test_paths_that_are_no_dataset(tmp_path: Path) -> None:
    assert error(tmp_path / "no\nwhere").endswith("no\\nwhere': No such file or directory. Check the spelling.")
    assert error("nul\0").startswith("path must be an existing folder, .csv file or archive, got 'nul\\x00': ")
    for name in ("a.zip", "a.7z", "a.RAR"):
        (tmp_path / name).touch()
        assert error(tmp_path / name).endswith("unpack other archives first.")
    (tmp_path / "a.txt").touch()
    text = error(tmp_path / "a.txt")
    assert text.startswith("path must be a folder, a .csv file or a .tar or .tgz of CUB-200-2011, got the file ")
    assert "a dataset of kind 'folder' must be a folder, got the file " in error(tmp_path / "a.txt", "folder")
    assert "a dataset of kind 'csv' must be a file, got the folder " in error(tmp_path, "csv")


def test_home_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(fill(tmp_path, "a/1.png", "b/1.png")))
    assert len(read_images("~")) == 2


def test_two_datasets_in_one_folder(tmp_path: Path) -> None:
    fill(tmp_path, "birds/images.txt", "birds/classes.txt", "shop/Ebay_test.txt")
    text = error(tmp_path)
    assert "path must contain one dataset, " in text
    assert " with cub, online-products. Pass one of " in text
    assert recognize(tmp_path / "birds") == "cub"
    assert recognize(tmp_path / "shop") == "online-products"
