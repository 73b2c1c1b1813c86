"""Images of every kind get the embedding that they have in a prepared dataset."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import liftedstruct as ls
from liftedstruct.cli import main
from liftedstruct.data import FolderSource, ImageSet
from liftedstruct.embedder import Embedder, open_embedder
from liftedstruct.embeddings import Embeddings, embed_files
from liftedstruct.trunks import make_trunk

SIZE, CROP = 40, 32


def picture(seed: int, width: int, height: int) -> Image.Image:
    """Draw a smooth picture whose halves differ, so that a wrong orientation or crop shows."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write image files of many formats, modes and sizes, one of them large enough to be decoded at a reduced scale."""
    root = tmp_path_factory.mktemp("photos")
    turned = Image.Exif()
    turned[0x0112] = 6
    picture(0, 300, 200).save(root / "a.jpg", exif=turned)
    picture(1, 61, 90).save(root / "b.png")
    picture(2, 700, 500).save(root / "c.jpg", quality=95)
    picture(3, 50, 50).convert("L").save(root / "d.png")
    picture(4, 80, 60).convert("P").save(root / "e.gif")
    clear = picture(5, 64, 48).convert("RGBA")
    clear.putalpha(picture(6, 64, 48).convert("L"))
    clear.save(root / "f.png")
    picture(7, 90, 50).convert("CMYK").save(root / "g.jpg")
    picture(8, 20, 13).save(root / "h.webp", lossless=True)
    Image.fromarray(np.arange(30 * 40, dtype=np.uint16).reshape(30, 40) * 50).save(root / "i.png")
    return root


@pytest.fixture(scope="module", params=["squash", "letterbox", "trim-letterbox"])
def embedder(request: pytest.FixtureRequest) -> Embedder:
    torch.manual_seed(0)
    trunk = make_trunk("small", pretrained=False)
    return Embedder(trunk, 8, normalize=True, crop=CROP, size=SIZE, resize_mode=request.param).eval()


def prepared(embedder: Embedder, folder: Path, out: Path) -> NDArray[np.float32]:
    """Return the embeddings of the files from a prepared dataset."""
    paths = tuple(sorted(file.name for file in folder.iterdir()))
    labels = np.arange(len(paths)) % 2
    image_set = ImageSet("photos", folder, FolderSource(folder), paths, labels, ("x", "y"), np.array([1]))
    packed = ls.prepare(image_set, out, size=SIZE, resize_mode=embedder.resize_mode, progress=False)
    assert len(packed) == len(paths)
    X: NDArray[np.float32] = ls.embed(embedder, packed).embeddings.astype(np.float32)
    return X


def decoded(file: Path) -> Image.Image:
    with Image.open(file) as image:
        image.load()
        return image


FORMS: list[Callable[[Path], Any]] = [Path, str, Path.read_bytes, Image.open, decoded]


def test_rows_equal_those_of_a_prepared_dataset(embedder: Embedder, folder: Path, tmp_path: Path) -> None:
    expected, files = prepared(embedder, folder, tmp_path), sorted(folder.iterdir())
    assert np.ptp(expected, axis=0).max() > 0.1  # the images differ
    for form in FORMS:
        images = [form(file) for file in files]
        large = [i for i, file in enumerate(files) if form is decoded and file.name in ("a.jpg", "c.jpg")]
        X = embedder.encode(images, batch_size=4)
        assert (str(X.dtype), X.shape) == ("float32", expected.shape)
        rest = np.setdiff1d(np.arange(len(files)), large)
        np.testing.assert_allclose(X[rest], expected[rest], atol=1e-5)
        np.testing.assert_allclose(X[large], expected[large], atol=0.05)  # not decoded at a reduced scale
        for image in images:
            if isinstance(image, Image.Image):
                image.close()
    mixed = [FORMS[i % 3](file) for i, file in enumerate(files)]
    np.testing.assert_allclose(embedder.encode(iter(mixed)), expected, atol=1e-5)


def test_arrays_and_tensors(embedder: Embedder) -> None:
    image = picture(1, 61, 90)
    pixels = np.asarray(image)
    expected = embedder.encode([image])
    for same in (pixels, torch.from_numpy(pixels.copy()), pixels[::-1].copy()[::-1], image.copy()):
        assert np.array_equal(embedder.encode(same), expected)  # a single image
        assert np.array_equal(embedder.encode([same]), expected)
    batch = np.stack([pixels, pixels[:, ::-1]])
    both = embedder.encode(batch)
    assert np.array_equal(embedder.encode(torch.from_numpy(batch)), both)
    np.testing.assert_allclose(both[:1], expected, atol=1e-6)
    assert not np.allclose(both[0], both[1], atol=1e-3)
    gray = np.asarray(image.convert("L"))
    gray_rows = embedder.encode([image.convert("L"), gray, gray[:, :, None], np.stack([gray] * 3, axis=2)])
    np.testing.assert_allclose(gray_rows, gray_rows[:1].repeat(4, axis=0), atol=1e-6)
    clear = np.dstack([pixels, np.full((90, 61), 255, np.uint8)])
    np.testing.assert_allclose(embedder.encode([clear]), expected, atol=1e-6)
    assert embedder.encode([]).shape == (0, 8)


def test_the_image_is_not_changed(embedder: Embedder, folder: Path) -> None:
    with Image.open(folder / "a.jpg") as image:
        first = embedder.encode([image])
        assert image.size == (300, 200)  # not turned
        assert np.array_equal(embedder.encode([image]), first)


def test_bad_images_are_named(embedder: Embedder, folder: Path, tmp_path: Path) -> None:
    good, broken = folder / "b.png", tmp_path / "broken.jpg"
    broken.write_bytes((folder / "a.jpg").read_bytes()[:300])
    (tmp_path / "empty.png").touch()
    cases: list[tuple[Any, str]] = [
        (tmp_path / "none.jpg", r"images must be readable, got '.*none\.jpg': missing\. Leave it out\."),
        (broken, r"'.*broken\.jpg': (truncated|broken)"),
        (tmp_path / "empty.png", r"'.*empty\.png': empty file"),
        (tmp_path, "is a folder"),
        (b"GIF89a", r"got the bytes at position 1: "),
        (np.zeros((4, 4, 3)), r"got float64 of shape \(4, 4, 3\) at position 1\. Convert it\."),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), r"got uint8 of shape \(3, 8, 8\) at position 1"),
        (np.zeros((0, 4, 3), np.uint8), r"got uint8 of shape \(0, 4, 3\)"),
        (None, r"got object of shape \(\) at position 1"),
    ]
    for image, message in cases:
        with pytest.raises(ValueError, match=message) as error:
            embedder.encode([good, image])
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="batch_size must be a whole number >= 1, got 0"):
        embedder.encode([good], batch_size=0)


def test_unreadable_images_can_be_left_out(embedder: Embedder, folder: Path, tmp_path: Path) -> None:
    good = sorted(folder.iterdir())
    (tmp_path / "empty.png").touch()
    mixed: list[Any] = [tmp_path / "none.jpg", *good[:3], b"GIF89a", *good[3:], tmp_path / "empty.png"]
    reasons: dict[int, str] = {}
    X = embedder.encode(mixed, batch_size=2, unreadable=reasons)
    np.testing.assert_allclose(X, embedder.encode(good), atol=1e-6)
    assert list(reasons) == [0, 4, len(mixed) - 1]
    assert (reasons[0], reasons[len(mixed) - 1]) == ("missing", "empty file")
    assert embedder.encode([tmp_path / "none.jpg"], unreadable={}).shape == (0, 8)


def test_a_changed_embedder_encodes_anew(folder: Path) -> None:
    """The folded copy is kept between calls, but not beyond a change of the weights or the pooling."""
    embedder = Embedder(make_trunk("small", pretrained=False), 8, crop=CROP, size=SIZE).eval()
    first = embedder.encode(folder / "b.png")
    assert embedder._network() is embedder._network()
    with torch.no_grad():
        for parameter in embedder.linear.parameters():
            parameter.mul_(2)
    np.testing.assert_allclose(embedder.encode(folder / "b.png"), 2 * first, rtol=1e-4, atol=1e-5)
    embedder.trunk.set_pool("max")
    assert not np.allclose(embedder.encode(folder / "b.png"), 2 * first, rtol=1e-2)


def test_load_remembers_the_preprocessing(embedder: Embedder, folder: Path, tmp_path: Path) -> None:
    again = ls.load(embedder.save(tmp_path))
    assert (again.size, again.resize_mode, again.crop) == (SIZE, embedder.resize_mode, CROP)
    photo = io.BytesIO()
    picture(9, 100, 30).save(photo, "PNG")
    assert np.array_equal(again.encode(photo.getvalue()), embedder.encode(photo.getvalue()))
    assert again.truncated(4).size == SIZE
    assert open_embedder(tmp_path, pooled=True).resize_mode == embedder.resize_mode
    with pytest.raises(ValueError, match="size must be a whole number >= 32, got 31"):
        Embedder(make_trunk("small", pretrained=False), crop=32, size=31)
    with pytest.raises(ValueError, match="resize_mode must be one of letterbox, squash, trim-letterbox, got 'pad'"):
        Embedder(make_trunk("small", pretrained=False), resize_mode="pad")


def test_a_run_encodes_like_its_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The preprocessing of the training data goes from `prepare` through `train` into the embedder."""
    folder = tmp_path / "photos"
    for i in range(8):
        (folder / f"class{i // 2}").mkdir(parents=True, exist_ok=True)
        picture(i, 90 + 9 * i, 60).save(folder / f"class{i // 2}" / f"{i}.png")
    data = ls.prepare(ls.read_images(folder), tmp_path / "data", size=48, resize_mode="letterbox", progress=False)
    config = ls.TrainConfig(
        str(tmp_path / "data"), str(tmp_path / "run"), trunk="small", weights="random", dim=4, steps=2, batch_size=8, crop=40
    )
    ls.train(config, progress=False)
    embedder = ls.load(tmp_path / "run")
    expected = ls.embed(embedder, data)
    X = embedder.encode([folder / path for path in expected.paths])
    np.testing.assert_allclose(X, expected.embeddings, atol=1e-5)

    (folder / "class0" / "broken.png").write_bytes(b"half")
    found, left_out = embed_files(embedder, [folder])
    assert left_out == {str(folder / "class0" / "broken.png"): "not an image, or broken at its start"}
    assert [Path(path).name for path in found.paths] == [f"{i}.png" for i in range(8)]
    assert [found.class_names[label] for label in found.labels] == [f"class{i // 2}" for i in range(8)]
    np.testing.assert_allclose(found.embeddings, expected.embeddings[np.argsort(expected.paths)], atol=1e-5)
    assert found.seen is not None
    assert (found.seen.images, found.seen.n_images) == (len(data.train), 8)
    out, one = tmp_path / "found.npz", str(folder / "class1" / "2.png")
    assert main(["embed", str(tmp_path / "run"), str(folder), "--out", str(out)]) == 0
    assert np.array_equal(Embeddings.load(out).embeddings, found.embeddings)
    (tmp_path / "list.csv").write_text("path,price\nphotos/class1/2.png,3\nphotos/class0/0.png,4\n")
    assert main(["embed", str(tmp_path / "run"), str(tmp_path / "list.csv"), one, "--out", str(out)]) == 0
    again = Embeddings.load(out)
    assert np.array_equal(again.embeddings[0], again.embeddings[2])
    assert (again.class_names, len(again)) == (("",), 3)
    assert capsys.readouterr().err.count("is left out: not an image") == 1
    for wrong, message in (
        ([str(tmp_path / "none.jpg")], "images must be existing files or folders, got"),
        ([str(folder), "--crop", "8"], "--part, --crop and --hflip need a prepared dataset"),
        ([str(folder / "class0" / "broken.png")], r"at least one image must be readable, got 1 \('.*broken.png: not an image"),
    ):
        assert main(["embed", str(tmp_path / "run"), *wrong, "--out", str(out)]) == 1
        assert re.search(message, capsys.readouterr().err)
