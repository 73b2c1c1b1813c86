"""Rendered products: reproducible bytes, distinct images, and resumable writing."""

import hashlib
import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from liftedstruct.data import FolderSource, read_images
from liftedstruct.data.products import CATEGORIES, ProductSource, category_of, product_images, render, write_products
from liftedstruct.data.products.product_dataset import class_sizes
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.rasterizer import rasterize
from liftedstruct.data.products.reading import PRODUCTS_RECORD
from liftedstruct.data.products.scene import draw_camera, draw_room, model
from liftedstruct.data.products.shapes import build
from liftedstruct.data.readers import recognize
from liftedstruct.data.sources import Source

JOBS = [(product, image) for product in range(12) for image in range(2)]


def digest(product: int, image: int) -> str:
    return hashlib.sha256(render(product, image, 48).tobytes()).hexdigest()


@pytest.fixture(scope="module")
def digests() -> list[str]:
    return [digest(*job) for job in JOBS]


def test_same_bytes_in_threads_and_in_any_order(digests: list[str]) -> None:
    model.cache_clear()
    with ThreadPoolExecutor(4) as threads:
        again = list(threads.map(lambda job: digest(*job), reversed(JOBS)))
    assert again[::-1] == digests


def test_same_bytes_in_another_process(digests: list[str]) -> None:
    code = "import hashlib; from liftedstruct.data.products import render\n"
    code += f"for job in {JOBS[::6]}: print(hashlib.sha256(render(*job, size=48).tobytes()).hexdigest())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.split() == digests[::6]


def test_every_number_counts(digests: list[str]) -> None:
    assert len(set(digests)) == len(JOBS)
    assert not np.array_equal(render(0, 0, 48, seed=0), render(0, 0, 48, seed=1))


def test_importing_the_package_does_not_import_numba() -> None:
    subprocess.run([sys.executable, "-c", "import liftedstruct, sys; assert 'numba' not in sys.modules"], check=True)


@pytest.mark.parametrize("size", [16, 64, 128, 200])
def test_any_size_shows_the_same_scene(size: int) -> None:
    image = render(3, 1, size)
    assert image.shape == (size, size, 3)
    assert image.dtype == np.uint8
    small = [np.asarray(Image.fromarray(render(3, 1, s)).resize((8, 8), Image.Resampling.BOX), dtype=float) for s in (size, 96)]
    assert np.abs(small[0] - small[1]).mean() < 12


@pytest.mark.parametrize("category", CATEGORIES)
def test_category_is_visible_in_the_image(category: str) -> None:
    """Check six products: light is finite everywhere, and the product covers some but not all of the image."""
    products = [product for product in range(72) if category_of(product) == category]
    assert len(products) == 6
    shares = []
    for product in products:
        mesh, box = model(product, 0)
        vertices, triangles = mesh.vertices, mesh.triangles
        assert np.isfinite(vertices).all()
        assert vertices[:, 2].min() == pytest.approx(0, abs=1e-5)
        assert np.allclose(np.linalg.norm(vertices[:, 3:6], axis=1), 1, atol=1e-3)
        assert 0 <= triangles.min() <= triangles.max() < len(vertices)
        assert len(mesh.material_of) == len(triangles)
        assert mesh.material_of.max() < len(mesh.materials)
        rng = RandomStream("test", product)
        camera = draw_camera(rng, box, mesh.radius, sideways=False)
        room, lights = draw_room(rng, camera)
        light, share = rasterize(mesh, camera, lights, room, 48, 2)
        assert np.isfinite(light).all()
        assert light.min() >= 0
        shares.append(share)
        assert render(product, 0, 48).std() > 4
    assert min(shares) > 0.03
    assert max(shares) < 0.97
    assert 0.05 < np.mean(shares) < 0.75


def test_products_of_a_category_differ_in_shape() -> None:
    mugs = [product for product in range(240) if category_of(product) == "mug"]
    boxes = np.array([model(product, 0)[1] for product in mugs])
    assert (boxes / boxes[:, :1])[:, 2].std() > 0.1  # height / width
    assert len({len(build(product).parts) for product in range(36)}) > 12  # the number of parts differs, too


def test_categories_are_even() -> None:
    names = [category_of(product, seed=5) for product in range(1200)]
    assert {names.count(category) for category in CATEGORIES} == {100}
    assert names[:12] != [category_of(product, seed=6) for product in range(12)]


def test_set_of_online_products_size_is_lazy() -> None:
    images = product_images(22_634)
    assert len(images) == 120_053
    assert (len(images.train_classes), len(images.test_classes)) == (11_318, 11_316)
    assert set(images.super_classes) == set(CATEGORIES)
    counts = np.bincount(images.labels)
    assert (counts.min(), counts.max()) == (2, 12)


def test_set() -> None:
    images = product_images(7, 3, size=32, seed=2)
    assert len(images) == 21
    assert list(images.test_classes) == [4, 5, 6]
    assert list(images.labels[:4]) == [0, 0, 0, 1]
    assert images.name == "products"
    assert images.class_names[6] == f"{images.super_classes[6]} 00006"
    source: Source = pickle.loads(pickle.dumps(images.source))
    image = np.asarray(source.open(images.paths[4]))
    assert np.array_equal(image, render(1, 1, 32, seed=2))
    prints = {source.fingerprint(path) for path in images.paths}
    assert len(prints) == 21
    assert prints.isdisjoint(ProductSource(33, 2).fingerprint(path) for path in images.paths)


def test_sizes() -> None:
    assert class_sizes(40, seed=1) == class_sizes(40, seed=1) != class_sizes(40, seed=2)
    assert sum(class_sizes(1000)) == 5304
    assert class_sizes(3, 9) == [9, 9, 9]


@pytest.mark.parametrize("path", ["", "chair", "chair/00000/x.png", "nothing/00000/0.png", "../etc/0", "mug/0/0.png"])
def test_source_knows_no_other_paths(path: str) -> None:
    with pytest.raises(FileNotFoundError, match="no product has the path"):
        ProductSource().open(path)


def test_writing_and_resuming(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    images = write_products(folder, 5, 2, size=32)
    assert "render: 10 of 10 images" in capsys.readouterr().err
    files = sorted(folder.glob("*/*/*.png"))
    assert sorted(folder / path for path in images.paths) == files
    assert len(files) == 10
    assert np.array_equal(np.asarray(images.source.open(images.paths[3])), render(1, 1, 32))
    content = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}
    files[4].unlink()
    files[7].write_bytes(b"")  # as after a power failure
    write_products(folder, 5, 2, size=32)
    assert {file: file.read_bytes() for file in files} == {file: whole for file, (whole, _) in content.items()}
    assert all(file.stat().st_mtime_ns == content[file][1] for i, file in enumerate(files) if i not in (4, 7))
    assert not list(folder.rglob("*.part"))
    write_products(folder, 5, 2, size=32)


@pytest.mark.parametrize(
    ("classes", "images_each", "seed", "suffix"), [(7, 2, 0, "png"), (6, None, 0, "jpg"), (13, 1, 3, "webp")]
)
def test_a_written_folder_is_read_as_the_same_set(
    tmp_path: Path, classes: int, images_each: int | None, seed: int, suffix: str
) -> None:
    lazy = product_images(classes, images_each, 16, seed)
    written = write_products(tmp_path, classes, images_each, 16, seed, suffix)
    assert recognize(tmp_path) == "products"
    for images in (written, read_images(tmp_path), read_images(tmp_path, "products")):
        assert images.paths == tuple(path.replace(".png", f".{suffix}") for path in lazy.paths)
        for name in ("labels", "test_classes", "validation_classes"):
            assert np.array_equal(getattr(images, name), getattr(lazy, name))
            assert getattr(images, name).dtype == getattr(lazy, name).dtype
        for name in ("name", "class_names", "super_classes", "warnings", "missing", "extra"):
            assert getattr(images, name) == getattr(lazy, name)
        assert (images.root, images.source) == (tmp_path, FolderSource(tmp_path))
    held_out = read_images(tmp_path, validation=0.3, seed=1).validation_classes
    assert np.array_equal(held_out, lazy.with_validation(0.3, seed=1).validation_classes)


def test_a_written_folder_that_was_changed(tmp_path: Path) -> None:
    paths = write_products(tmp_path, 4, 3, size=16).paths
    for path in (paths[0], *paths[3:6]):
        (tmp_path / path).unlink()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "1.png").write_bytes((tmp_path / paths[1]).read_bytes())
    (tmp_path / "notes.txt").touch()
    added = str(Path(paths[6]).with_name("mine.png"))
    (tmp_path / added).write_bytes((tmp_path / paths[6]).read_bytes())
    images = read_images(tmp_path)
    assert images.missing == (paths[0], *paths[3:6])
    assert images.extra == ("own/1.png", "notes.txt")
    assert images.warnings == (
        "products: missing images are left out: 4 (" + ", ".join(map(repr, images.missing)) + ")",
        f"products: images that are not listed get the class of their folder: 1 ('{added}')",
        "products: images outside the product folders are left out: 1 ('own/1.png')",
        "products: files that are not images are left out: 1 ('notes.txt')",
    )
    assert len(images.class_names) == 4  # class 1 is kept, so that the split does not change
    assert images.paths == (*paths[1:3], *paths[6:9], added, *paths[9:])
    assert images.labels.tolist() == [0, 0, 2, 2, 2, 2, 3, 3, 3]
    assert images.test_classes.tolist() == [2, 3]
    with pytest.raises(ValueError, match=r"test_classes must not be set .* \(products\), got 0\.3\. Omit it\.$"):
        read_images(tmp_path, test_classes=0.3)
    assert read_images(tmp_path, "folder").name == "folder"
    for path in images.paths:
        (tmp_path / path).unlink()
    with pytest.raises(ValueError, match=r"listed in its products.json, got none of 12 \(.* Write the products"):
        read_images(tmp_path)


def test_other_records_of_products(tmp_path: Path) -> None:
    write_products(tmp_path, 2, 1, size=16)
    record = tmp_path / PRODUCTS_RECORD
    whole = json.loads(record.read_text())
    old = {key: value for key, value in whole.items() if key != "products"}
    wrong: list[object] = [None, 3, ["x"], [{}], [{"name": "a", "super_class": "b", "split": "c", "files": []}]]
    for products in wrong:
        record.write_text(json.dumps({**old, "products": products}))
        with pytest.raises(
            ValueError, match=r"\A[^\n]* must list the products with name, .* Write the products again [^\n]*\.\Z"
        ):
            read_images(tmp_path)
    record.write_text(json.dumps(old))  # a record without the list
    with pytest.raises(ValueError, match="must list the products"):
        read_images(tmp_path)
    write_products(tmp_path, 2, 1, size=16)
    assert json.loads(record.read_text()) == whole
    for text in ("{", "[]", '{"renderer": 1}', "[" * 100_000, "\udcff"):  # not a record of products
        record.write_bytes(text.encode("utf-8", "surrogateescape"))
        assert recognize(tmp_path) == "folder"
        with pytest.raises(ValueError, match=r"must be a folder with a valid products.json, got .* another kind\.$"):
            read_images(tmp_path, "products")


def test_writing_resumes_after_a_kill_at_its_first_file(tmp_path: Path) -> None:
    (tmp_path / ".liftedstruct-0123abcd-12-0123456789abcdef.tmp").write_text("{")
    assert len(write_products(tmp_path, 2, 1, size=16)) == 2


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_other_formats(tmp_path: Path, suffix: str) -> None:
    images = write_products(tmp_path, 2, 1, size=64, format=suffix)
    image = np.asarray(images.source.open(images.paths[1]).convert("RGB"), dtype=float)
    assert images.paths[1].endswith(suffix)
    assert np.abs(image - render(1, 0, 64)).mean() < 8


def test_writing_refuses_what_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(ValueError, match=r"must be empty .* thesis.tex"):
        write_products(tmp_path, 2, 1, size=16)
    with pytest.raises(ValueError, match="must be a folder, got the file"):
        write_products(tmp_path / "thesis.tex", 2, 1, size=16)
    write_products(tmp_path / "new", 2, 1, size=16)
    with pytest.raises(ValueError, match=r"with the same settings, got .*'size': 16"):
        write_products(tmp_path / "new", 2, 1, size=17)
    (tmp_path / "new" / PRODUCTS_RECORD).write_text("{")
    with pytest.raises(ValueError, match=r"with the same settings, got fan, products\.json, "):
        write_products(tmp_path / "new", 2, 1, size=16)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "thesis.tex"]


def test_writing_checks_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(ValueError, match=r"GB free for 2 images, got 0.00 GB"):
        write_products(tmp_path, 2, 1, size=16)
    assert json.loads((tmp_path / PRODUCTS_RECORD).read_text())["classes"] == 2


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"n_classes": 1}, "n_classes must be a whole number >= 2, got 1"),
        ({"n_classes": 2.5}, "n_classes must be a whole number >= 2, got 2.5"),
        ({"images_per_class": 0}, "images_per_class must be a whole number >= 1, got 0"),
        ({"size": 15}, "size must be a whole number >= 16, got 15"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"format": "pgn"}, "format must be one of jpg, png, webp, got 'pgn'. Did you mean 'png'?"),
    ],
)
def test_bad_input(tmp_path: Path, wrong: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("?", r"\?")):
        write_products(tmp_path / "out", **{"n_classes": 2, **wrong})  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
    if "format" not in wrong:
        with pytest.raises(ValueError, match=text):
            product_images(**wrong)  # type: ignore[arg-type]


def test_render_checks_its_numbers() -> None:
    for wrong in ((-1, 0), (0, -1), (0, 0, 8), (0, 0, 16, -3), (True, 0)):
        with pytest.raises(ValueError, match="must be a whole number"):
            render(*wrong)
