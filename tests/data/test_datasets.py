import os
import shutil
import struct
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from liftedstruct.data import ImageSet, TarSource, datasets, read_images
from liftedstruct.data.datasets import KnownDataset
from liftedstruct.data.readers import recognize

DATA = os.environ.get("LIFTEDSTRUCT_DATA")
SUPER_CLASSES = ["bicycle", "cabinet", "chair", "coffee_maker", "fan", "kettle", "lamp", "mug", "sofa", "stapler", "table"]
SUPER_CLASSES += ["toaster"]


def sizes(images: int, classes: int) -> list[int]:
    """Distribute images over classes as evenly as possible."""
    return [images // classes + (i < images % classes) for i in range(classes)]


def touch(root: Path, files: list[str]) -> None:
    for folder in {file.rpartition("/")[0] for file in files}:
        (root / folder).mkdir(parents=True, exist_ok=True)
    seeds = [root.parent / f"seed {i}" for i in range(len(files) // 50_000 + 1)]  # a file can have at most 65,000 hard links
    for seed in seeds:
        seed.touch()
    here = os.open(root, os.O_RDONLY)
    for i, file in enumerate(files):  # creating and removing a link takes half the time of a file
        with suppress(FileExistsError):
            os.link(seeds[i // 50_000], file, dst_dir_fd=here)
    os.close(here)
    for seed in seeds:
        seed.unlink()


def error(path: Path, kind: str | None = None, **settings: Any) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the callers match the text
        read_images(path, kind, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit(file: Path, change: Callable[[list[str]], object]) -> None:
    lines = file.read_text().splitlines()
    change(lines)
    file.write_text("\n".join(lines) + "\n")


def shape(images: ImageSet) -> tuple[int, int, int, int]:
    return len(images.train), len(images.test), len(images.train_classes), len(images.test_classes)


# --- CUB-200-2011 --------------------------------------------------------------------------------------------------------


def make_cub(root: Path, dataset: KnownDataset) -> Path:
    names = [f"{i + 1:03}.Bird_{i % 7}" for i in range(sum(dataset.classes))]
    counts = [n for part in (0, 1) for n in sizes(dataset.images[part], dataset.classes[part])]
    files = [(i, f"{name}/{name[4:]}_{j:04}.jpg") for i, name in enumerate(names) for j in range(counts[i])]
    touch(root, [f"images/{file}" for _, file in files])
    (root / "classes.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(names, 1)))
    (root / "images.txt").write_text("".join(f"{i} {file}\n" for i, (_, file) in enumerate(files, 1)))
    (root / "image_class_labels.txt").write_text("".join(f"{i} {c + 1}\n" for i, (c, _) in enumerate(files, 1)))
    (root / "README").touch()
    return root


@pytest.fixture
def cub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the official layout, with 3 + 3 classes and 7 + 8 images."""
    small = KnownDataset("CUB-200-2011", (7, 8), (3, 3))
    monkeypatch.setattr(datasets, "CUB", small)
    return make_cub(tmp_path / "CUB_200_2011", small)


def test_cub_in_full(tmp_path: Path) -> None:
    root = make_cub(tmp_path / "data" / "CUB_200_2011", datasets.CUB)
    for path in (root, root.parent):
        images = read_images(path)
        assert (images.name, images.root, images.warnings) == ("CUB-200-2011", root, ())
        assert shape(images) == (5864, 5924, 100, 100)
        assert images.test_classes.tolist() == list(range(100, 200))
        assert images.class_names[0] == "001.Bird_0"
        assert images.paths[0] == "images/001.Bird_0/Bird_0_0000.jpg"
        assert (np.diff(images.labels) >= 0).all()
    (root / images.paths[-1]).unlink()
    assert shape(read_images(root)) == (5864, 5923, 100, 100)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("above", ["CUB_200_2011", ".", "a/b"])
def test_cub_from_the_archive(cub: Path, tmp_path: Path, mode: Any, above: str) -> None:
    archive = tmp_path / ("birds.tgz" if mode == "w:gz" else "birds.tar")
    (cub / "images" / "004.Bird_3" / "Bird_3_0000.jpg").unlink()
    (cub / "images" / "001.Bird_0" / "._Bird_0_0000.jpg").touch()  # as written by macOS
    with tarfile.open(archive, mode) as tar:
        tar.add(cub, arcname=above)
    images = read_images(archive, validation=0.3)
    prefix = "" if above == "." else f"{above}/"
    assert images.root == archive
    assert isinstance(images.source, TarSource)
    assert images.paths[0] == f"{prefix}images/001.Bird_0/Bird_0_0000.jpg"
    assert shape(images)[1] == 7
    assert len(images.validation_classes) == 1
    assert images.warnings[0] == (
        f"CUB-200-2011: test images without a file are left out: 1 ('{prefix}images/004.Bird_3/Bird_3_0000.jpg')"
    )


def test_an_archive_of_something_else(cub: Path, tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(cub / "images", arcname="images")
    text = error(archive)
    assert text.startswith("an archive must contain CUB-200-2011, with images.txt, image_class_labels.txt, classes.txt, got ")
    assert text.endswith("without them. Unpack it and pass the folder.")
    with tarfile.open(archive, "a") as tar:
        tar.add(cub / "images.txt", arcname="images.txt")
        tar.add(cub / "classes.txt", arcname="classes.txt")
    assert "CUB-200-2011 must have the file image_class_labels.txt, got no such file in " in error(archive)
    archive.write_text("no archive")
    assert "must be a readable tar archive, got: " in error(archive)


def test_what_cub_lacks_and_what_it_has_too_much(cub: Path) -> None:
    (cub / "images" / "001.Bird_0" / "Bird_0_0001.jpg").unlink()
    shutil.rmtree(cub / "images" / "005.Bird_4")
    touch(cub, ["images/001.Bird_0/new.png", "images/007.Bird_6/0.jpg", "images/001.Bird_0/notes.txt"])
    images = read_images(cub)
    assert images.warnings == (
        "CUB-200-2011: training images without a file are left out: 1 ('images/001.Bird_0/Bird_0_0001.jpg')",
        "CUB-200-2011: test images without a file are left out: 3 ('images/005.Bird_4/Bird_4_0000.jpg', "
        "'images/005.Bird_4/Bird_4_0001.jpg', 'images/005.Bird_4/Bird_4_0002.jpg')",
        "CUB-200-2011: images that are not listed are left out: 2 ('images/001.Bird_0/new.png', 'images/007.Bird_6/0.jpg')",
    )
    assert images.missing == (
        "images/001.Bird_0/Bird_0_0001.jpg",
        *(f"images/005.Bird_4/Bird_4_000{i}.jpg" for i in range(3)),
    )
    assert images.extra == ("images/001.Bird_0/new.png", "images/007.Bird_6/0.jpg")
    assert shape(images) == (6, 5, 3, 3)
    assert images.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 3, 5, 5]


def test_every_missing_and_extra_file_is_named(cub: Path) -> None:
    names = read_images(cub).paths
    for name in names[:6] + names[7:]:
        (cub / name).unlink()
    new = [f"images/new/{i}.jpg" for i in range(9)]
    touch(cub, new)
    images = read_images(cub)
    assert images.missing == names[:6] + names[7:]
    assert images.extra == tuple(new)
    assert all(len(warning) < 300 for warning in images.warnings)


def test_lists_of_cub_that_are_too_short_or_long(cub: Path) -> None:
    for name in ("images.txt", "image_class_labels.txt"):
        edit(cub / name, lambda lines: lines.pop())
    edit(cub / "images.txt", lambda lines: lines.append("99 001.Bird_0/a b.jpg"))
    edit(cub / "image_class_labels.txt", lambda lines: lines.append("99 1"))
    touch(cub, ["images/001.Bird_0/a b.jpg"])
    assert read_images(cub).warnings == (
        "CUB-200-2011: expected 7 training images, got 8 (1 extra)",
        "CUB-200-2011: expected 8 test images, got 7 (1 missing)",
        "CUB-200-2011: images that are not listed are left out: 1 ('images/006.Bird_5/Bird_5_0001.jpg')",
    )


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        (
            "images.txt",
            lambda lines: lines.__setitem__(3, "four"),
            "images.txt, line 4: a line must be a number and a name, got",
        ),
        ("images.txt", lambda lines: lines.__setitem__(3, "4"), "got '4'. Download the dataset again."),
        (
            "classes.txt",
            lambda lines: lines.__setitem__(1, "1 again"),
            "classes.txt, line 2: a number must occur once, got 1 again",
        ),
        ("images.txt", lambda lines: lines.pop(2), "must agree, got a mismatch for image 3 (of 1)"),
        (
            "image_class_labels.txt",
            lambda lines: lines.clear(),
            "must agree, got a mismatch for image 1 (of 15)",
        ),
        (
            "image_class_labels.txt",
            lambda lines: lines.__setitem__(0, "1 77"),
            "must agree, got a mismatch for image 1 (of 1)",
        ),
        (
            "classes.txt",
            lambda lines: lines.append("7 x"),
            "CUB-200-2011 must have 6 classes, got 7 in classes.txt. Download it",
        ),
        (
            "images.txt",
            lambda lines: lines.__setitem__(1, "2 " + lines[0].split()[1]),
            "must list each image once, got 'images/001.Bird_0/Bird_0_0000.jpg' more than once",
        ),
    ],
)
def test_broken_lists_of_cub(cub: Path, name: str, change: Callable[[list[str]], object], text: str) -> None:
    edit(cub / name, change)
    assert text in error(cub)


def test_cub_without_its_parts(cub: Path) -> None:
    shutil.rmtree(cub / "images")
    text = error(cub)
    assert (
        "CUB-200-2011 must have its images beside its lists, got none of 15 ('images/001.Bird_0/Bird_0_0000.jpg', ...) in"
        in text
    )
    assert text.endswith("Unpack the images there too.")
    (cub / "image_class_labels.txt").unlink()
    assert "CUB-200-2011 must have the file image_class_labels.txt, got No such file or directory in " in error(cub)
    (cub / "classes.txt").unlink()
    text = error(cub, "cub")
    assert text.startswith("CUB-200-2011 must be a folder with images.txt, image_class_labels.txt, classes.txt, got ")
    assert text.endswith("without them. Pass the folder that contains them, or another kind.")


def test_the_split_is_the_papers(cub: Path) -> None:
    text = error(cub, test_classes=0.5)
    assert "test_classes must not be set for data with its own split, such as " in text
    assert " (CUB-200-2011), got 0.5. Omit it." in text
    images = read_images(cub, validation=0.5, seed=1)
    assert len(images.validation_classes) == 2
    assert images.test_classes.tolist() == [3, 4, 5]


def test_two_copies(cub: Path) -> None:
    shutil.copytree(cub, cub.parent / "copy")
    text = error(cub.parent)
    assert "path must contain one dataset, " in text
    assert "copy') in " in text
    assert text.endswith("Pass one of these.")


@pytest.mark.skipif(
    not (DATA and (Path(DATA) / "CUB_200_2011.tar").exists()),
    reason="LIFTEDSTRUCT_DATA does not name a folder with CUB_200_2011.tar",
)
def test_the_real_cub() -> None:
    images = read_images(Path(str(DATA)) / "CUB_200_2011.tar")
    assert images.warnings == ()
    assert shape(images) == (5864, 5924, 100, 100)
    assert images.class_names[0] == "001.Black_footed_Albatross"
    assert images.class_names[199] == "200.Common_Yellowthroat"
    with images.source.open(images.paths[5863]) as image:
        assert np.asarray(image.convert("RGB")).std() > 10


# --- CARS196 -------------------------------------------------------------------------------------------------------------


def make_cars(root: Path, dataset: KnownDataset, drop: str = "") -> Path:
    """Make the layout of the official download, with the images in random order."""
    counts = [n for part in (0, 1) for n in sizes(dataset.images[part], dataset.classes[part])]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    files = [f"car_ims/{i:06}.jpg" for i in range(1, len(labels) + 1)]
    names = ["relative_im_path", "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "test"]
    annotations = np.empty((1, len(labels)), dtype=[(name, object) for name in names if name != drop])
    for i, (file, label) in enumerate(zip(files, labels, strict=True)):
        row = dict(zip(names, (file, 1, 2, 3, 4, int(label) + 1, i % 2), strict=True))
        annotations[0, i] = tuple(row[name] for name in names if name != drop)
    class_names = np.empty((1, len(counts)), dtype=object)
    class_names[0] = [f"Car {len(counts) - i:03} C/V" for i in range(len(counts))]  # not in alphabetical order
    touch(root, files)
    scipy.io.savemat(root / "cars_annos.mat", {"annotations": annotations, "class_names": class_names})
    return root


@pytest.fixture
def cars(monkeypatch: pytest.MonkeyPatch) -> KnownDataset:
    small = KnownDataset("CARS196", (7, 8), (3, 3))
    monkeypatch.setattr(datasets, "CARS", small)
    return small


@pytest.mark.slow
def test_cars_in_full(tmp_path: Path) -> None:
    root = make_cars(tmp_path / "cars", datasets.CARS)
    images = read_images(tmp_path)
    assert (images.name, images.root, images.warnings) == ("CARS196", root, ())
    assert shape(images) == (8054, 8131, 98, 98)
    assert images.class_names[0] == "Car 196 C/V"
    assert images.test_classes.tolist() == list(range(98, 196))
    assert images.paths[0] == "car_ims/000001.jpg"


def test_cars_as_train_and_test_folders(tmp_path: Path) -> None:
    counts = [n for part in (0, 1) for n in sizes(datasets.CARS.images[part], datasets.CARS.classes[part])]
    files = [f"car_data/{('train', 'test')[j % 2]}/Car {i:03}/{j:05}.jpg" for i, n in enumerate(counts) for j in range(n)]
    touch(tmp_path, [*files, "car_data/names.csv", "car_data/train/loose.jpg"])
    for path in (tmp_path, tmp_path / "car_data"):
        assert recognize(path) == "cars"
        images = read_images(path)
        assert (images.name, images.root) == ("CARS196", tmp_path / "car_data")
        assert images.warnings == ("CARS196: images that are not listed are left out: 1 ('train/loose.jpg')",)
        assert images.extra == ("train/loose.jpg",)
        assert shape(images) == (8054, 8131, 98, 98)
        assert images.class_names[97:99] == ("Car 097", "Car 098")
        assert {path.split("/")[0] for path in images.paths} == {"train", "test"}
        assert all(path.split("/")[1] == images.class_names[y] for path, y in zip(images.paths, images.labels, strict=True))
    for name in ("train/Car 195/00000.jpg", "test/Car 195/00001.jpg", "train/loose.jpg"):
        (tmp_path / "car_data" / name).unlink()
    assert read_images(path).warnings == ("CARS196: expected 8,131 test images, got 8,129 (2 missing)",)
    shutil.rmtree(path / "train" / "Car 000")
    shutil.rmtree(path / "test" / "Car 000")
    assert recognize(path) == "folder"  # for which a class in both parts is an error
    assert "each class must be in one part of the split, got 'Car 001' in" in error(path)
    assert "CARS196 must be a folder with cars_annos.mat, car_ims, got " in error(path, "cars")


def test_an_ordinary_split_is_not_cars(tmp_path: Path, cars: KnownDataset) -> None:
    touch(tmp_path, [f"{'train' if i < 6 else 'test'}/{i}/1.jpg" for i in range(12)])
    assert recognize(tmp_path) == "folder"
    assert shape(read_images(tmp_path)) == (6, 6, 6, 6)


def test_what_cars_lack_and_what_they_have_too_much(tmp_path: Path, cars: KnownDataset) -> None:
    make_cars(tmp_path, cars)
    images = read_images(tmp_path)
    gone = [images.paths[images.train[0]], images.paths[images.test[0]]]
    for name in gone:
        (tmp_path / name).unlink()
    touch(tmp_path, ["car_ims/000099.jpg"])
    images = read_images(tmp_path)
    assert images.warnings == (
        f"CARS196: training images without a file are left out: 1 ('{gone[0]}')",
        f"CARS196: test images without a file are left out: 1 ('{gone[1]}')",
        "CARS196: images that are not listed are left out: 1 ('car_ims/000099.jpg')",
    )
    assert shape(images) == (6, 7, 3, 3)
    make_cars(tmp_path, KnownDataset("", (7, 10), (3, 3)))
    assert "CARS196: expected 8 test images, got 10 (2 extra)" in read_images(tmp_path).warnings


def test_broken_cars(tmp_path: Path, cars: KnownDataset) -> None:
    root = make_cars(tmp_path / "cars", KnownDataset("", (7, 8), (3, 2)))
    assert "CARS196 must have 6 classes, got 5 in cars_annos.mat. Download it again, or read other data as" in error(root)
    make_cars(root, cars, drop="class")
    text = error(root)
    assert text.startswith("cars_annos.mat must have annotations with relative_im_path and class, and class_names, got ")
    assert text.endswith("class. Download the dataset again.")
    make_cars(root, cars)
    content = (root / "cars_annos.mat").read_bytes()
    for broken in (b"", b"no such file" * 50, content[: len(content) // 2]):
        (root / "cars_annos.mat").write_bytes(broken)
        assert "cars_annos.mat must have annotations with" in error(root)
    (root / "cars_annos.mat").unlink()
    assert "cars_annos.mat must have annotations with" in error(root)
    make_cars(root, cars)
    shutil.rmtree(root / "car_ims")
    assert "CARS196 must have its images beside its lists, got none of 15 ('car_ims/000001.jpg', ...) in " in error(root)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "CARS196 must be a folder with cars_annos.mat, car_ims, got " in error(empty, "cars")


def test_annotations_of_cars_that_claim_to_be_huge(tmp_path: Path, cars: KnownDataset) -> None:
    make_cars(tmp_path, cars)
    names = np.empty((1, 10), dtype=object)
    names[0] = "a"
    file = tmp_path / "cars_annos.mat"
    scipy.io.savemat(file, {"annotations": names})
    file.write_bytes(file.read_bytes().replace(struct.pack("<ii", 1, 10), struct.pack("<ii", 1, 10**7)))
    assert "and class_names, got ValueError: annotations of shape (1, 10000000). Download" in error(tmp_path)


def test_a_class_number_of_cars_that_is_none(tmp_path: Path, cars: KnownDataset) -> None:
    make_cars(tmp_path, cars)
    content = scipy.io.loadmat(tmp_path / "cars_annos.mat")
    content["annotations"]["class"][0, 4] = 7
    scipy.io.savemat(tmp_path / "cars_annos.mat", {name: content[name] for name in ("annotations", "class_names")})
    assert "cars_annos.mat must have classes from 1 to 6, got 7. Download" in error(tmp_path)


# --- Stanford Online Products --------------------------------------------------------------------------------------------


def make_products(root: Path, dataset: KnownDataset) -> Path:
    rows: list[str] = []
    files, lists = [], []
    key = 0
    for part in (0, 1):
        start = len(rows)
        for n in sizes(dataset.images[part], dataset.classes[part]):
            key += 1
            super_key = key % 12
            for j in range(n):
                files.append(f"{SUPER_CLASSES[super_key]}_final/{110000000000 + key}_{j}.JPG")
                rows.append(f"{len(rows) + 1} {key} {super_key + 1} {files[-1]}")
        lists.append(rows[start:])
    touch(root, files)
    for name, part_rows in zip(("Ebay_train.txt", "Ebay_test.txt", "Ebay_info.txt"), (*lists, rows), strict=True):
        (root / name).write_text("\n".join(["image_id class_id super_class_id path", *part_rows]) + "\n")
    return root


@pytest.fixture
def products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the official layout, with 14 + 13 classes and 30 + 31 images."""
    small = KnownDataset("Stanford Online Products", (30, 31), (14, 13))
    monkeypatch.setattr(datasets, "ONLINE_PRODUCTS", small)
    return make_products(tmp_path / "Stanford_Online_Products", small)


@pytest.fixture
def all_products(tmp_path: Path) -> Iterator[Path]:
    yield make_products(tmp_path / "Stanford_Online_Products", datasets.ONLINE_PRODUCTS)
    shutil.rmtree(tmp_path)  # pytest would keep 120,053 files for three runs


def test_online_products_in_full(all_products: Path) -> None:
    images = read_images(all_products.parent)
    assert (images.name, images.root, images.warnings) == ("Stanford Online Products", all_products, ())
    assert shape(images) == (59551, 60502, 11318, 11316)
    assert len(set(images.class_names)) == len(images.super_classes) == 22634
    assert set(images.super_classes) == set(SUPER_CLASSES)
    assert images.class_names[0] == "cabinet_00001"
    assert images.test_classes.tolist() == list(range(11318, 22634))


def test_what_online_products_lack_and_have_too_much(products: Path) -> None:
    for name in ("bicycle_final/110000000012_0.JPG", "toaster_final/110000000023_1.JPG"):
        (products / name).unlink()
    touch(products, ["fan_final/0.JPG"])
    edit(products / "Ebay_test.txt", lambda lines: lines.pop())
    images = read_images(products)
    assert images.warnings == (
        "Stanford Online Products: training images without a file are left out: 1 ('bicycle_final/110000000012_0.JPG')",
        "Stanford Online Products: expected 31 test images, got 30 (1 missing)",
        "Stanford Online Products: test images without a file are left out: 1 ('toaster_final/110000000023_1.JPG')",
        "Stanford Online Products: images that are not listed are left out: 2 ('coffee_maker_final/110000000027_1.JPG', "
        "'fan_final/0.JPG')",
    )
    assert shape(images) == (29, 29, 14, 13)


def test_classes_of_online_products_that_are_missing(products: Path) -> None:
    edit(products / "Ebay_train.txt", lambda lines: lines.__delitem__(slice(-2, None)))
    assert read_images(products).warnings == (
        "Stanford Online Products: expected 30 training images, got 28 (2 missing)",
        "Stanford Online Products: expected 14 training classes, got 13 (1 missing)",
        "Stanford Online Products: images that are not listed are left out: 2 ('chair_final/110000000014_0.JPG', "
        "'chair_final/110000000014_1.JPG')",
    )


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        (
            "Ebay_train.txt",
            lambda lines: lines.pop(0),
            "Ebay_train.txt, line 1: the header must be 'image_id class_id super_class_id",
        ),
        ("Ebay_test.txt", lambda lines: lines.clear(), "Ebay_test.txt, line 1: the header must be"),
        (
            "Ebay_test.txt",
            lambda lines: lines.__setitem__(4, "5 x 1 a"),
            "line 5: a line must be three numbers and a path, got '5 x",
        ),
        (
            "Ebay_test.txt",
            lambda lines: lines.append("9 14 3 chair_final/9.JPG"),
            "each class must be in one part of the split, got 14 in Ebay_train.txt and Ebay_test.txt (first of 1)",
        ),
        (
            "Ebay_train.txt",
            lambda lines: lines.append(lines[1]),
            "must list each image once, got 'cabinet_final/110000000001_0.JPG'",
        ),
    ],
)
def test_broken_lists_of_online_products(products: Path, name: str, change: Callable[[list[str]], object], text: str) -> None:
    edit(products / name, change)
    assert text in error(products)


def test_online_products_without_its_parts(products: Path) -> None:
    (products / "Ebay_test.txt").unlink()
    assert "Stanford Online Products must have the file Ebay_test.txt, got No such file or directory in" in error(products)
    text = error(products / "mug_final", "online-products")
    assert text.startswith("Stanford Online Products must be a folder with Ebay_train.txt, Ebay_test.txt, got ")
