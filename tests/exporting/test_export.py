"""An exported folder embeds image files without torch and without this package, equal to the embedder."""

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import liftedstruct as ls
from faults import DAMAGES, damaged
from liftedstruct.cli import main
from liftedstruct.embedder import Embedder
from liftedstruct.trunks import TRUNKS, make_trunk

CROPS = {"small": 48}  # of the others, their own
NEEDED = ("numpy", "PIL", "onnxruntime")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Write image files of many modes, formats and sizes."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)

    def picture(width: int, height: int) -> Image.Image:
        small = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
        return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)

    turned = Image.Exif()
    turned[0x0112] = 6
    picture(300, 200).save(folder / "turned.jpg", exif=turned)
    picture(1700, 1300).save(folder / "large.jpg", quality=95)
    picture(61, 90).convert("L").save(folder / "gray.png")
    picture(80, 60).convert("P").save(folder / "palette.gif")
    clear = picture(64, 48).convert("RGBA")
    clear.putalpha(picture(64, 48).convert("L"))
    clear.save(folder / "clear.png")
    picture(90, 50).convert("CMYK").save(folder / "cmyk.jpg")
    picture(90, 50).convert("CMYK").save(folder / "cmyk.tiff")
    picture(20, 13).save(folder / "tiny.webp", lossless=True)
    Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50).save(folder / "deep.png")
    Image.fromarray(rng.normal(size=(30, 40)).astype(np.float32)).save(folder / "float.tiff")
    Image.fromarray(np.arange(1200, dtype=np.uint8).reshape(30, 40)).convert("1").save(folder / "bits.png")
    white = Image.new("RGB", (200, 100), "white")
    white.paste(picture(60, 40), (30, 20))
    white.save(folder / "border.png")
    return sorted(map(str, folder.iterdir()))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment that has numpy, pillow and onnxruntime only."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in (*NEEDED, "flatbuffers", "google"):  # the last two are needed by onnxruntime
        spec = importlib.util.find_spec(name)
        assert spec
        assert spec.submodule_search_locations
        package = Path(next(iter(spec.submodule_search_locations)))
        (site / name).symlink_to(package)
        for libraries in package.parent.glob(f"{'pillow' if name == 'PIL' else name}.libs"):
            (site / libraries.name).symlink_to(libraries)
    found = folder / "bin" / "python"
    assert subprocess.run([found, "-c", "import torch"], capture_output=True).returncode
    assert subprocess.run([found, "-c", "import liftedstruct"], capture_output=True).returncode
    return found


def run_folder(path: Path, trunk: str, dim: int, resize_mode: str) -> Embedder:
    """Write a run folder with an embedder that has random weights, and batch norms that are not the identity."""
    torch.manual_seed(0)
    net = make_trunk(trunk, pretrained=False)
    crop = CROPS.get(trunk, net.input_size)
    path.mkdir()
    embedder = Embedder(net, dim, normalize=dim > 0, crop=crop, resize_mode=resize_mode)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0  # keep the statistics of one batch, so that the images differ in the deepest layers too
    with torch.no_grad():
        embedder(torch.randint(0, 256, (4, crop, crop, 3), dtype=torch.uint8))
    embedder.eval().save(path)
    return embedder


CASES = [("small", 16, mode) for mode in ("squash", "letterbox", "trim-letterbox")]
CASES += [("small", 0, "squash"), *((trunk, 8, "squash") for trunk in TRUNKS if trunk != "small")]


@pytest.mark.parametrize(
    ("trunk", "dim", "mode"), [pytest.param(*case, marks=() if case[0] == "small" else pytest.mark.slow) for case in CASES]
)
def test_embed_py_equals_the_embedder(
    trunk: str, dim: int, mode: str, photos: list[str], python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    embedder = run_folder(tmp_path / "run", trunk, dim, mode)
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model")]) == 0
    assert "embed.py" in capsys.readouterr().out
    moved = tmp_path / "moved"
    (tmp_path / "model").rename(moved)
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run([python, moved / "embed.py", *photos], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["file"] for row in rows] == photos
    expected = embedder.encode(photos)
    assert np.ptp(expected, axis=0).max() > 1e-3  # the images differ
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(np.array([row["embedding"] for row in rows]) / scale, expected / scale, atol=1e-4)
    loaded = ls.load(moved)
    assert loaded.onnx == moved / "model.onnx"
    np.testing.assert_allclose(loaded.encode(photos) / scale, expected / scale, atol=1e-4)
    assert loaded.short_sha() == embedder.short_sha()


def test_the_onnx_file_is_used_only_for_its_embedder(photos: list[str], tmp_path: Path) -> None:
    first = run_folder(tmp_path / "run", "small", 16, "squash")
    ls.export(tmp_path / "run", tmp_path / "model")
    loaded = ls.load(tmp_path / "model")
    with torch.no_grad():
        for embedder in (loaded, first):
            next(embedder.linear.parameters()).neg_()
    np.testing.assert_allclose(loaded.encode(photos), first.encode(photos), atol=1e-6)  # the changed weights are used
    first.save(tmp_path / "model" / "model.safetensors")
    assert ls.load(tmp_path / "model").onnx is None
    (tmp_path / "model" / "model.onnx").write_bytes(b"damaged")
    assert ls.load(tmp_path / "model").onnx is None


def test_a_damaged_onnx_file_is_not_used(photos: list[str], tmp_path: Path) -> None:
    embedder, dice, used = run_folder(tmp_path / "run", "small", 16, "squash"), random.Random(0), 0
    file = ls.export(tmp_path / "run", tmp_path / "model") / "model.onnx"
    whole, expected = file.read_bytes(), embedder.encode(photos)
    for kind in [*DAMAGES] * 5:
        file.write_bytes(damaged(whole, dice, kind))
        loaded = ls.load(tmp_path / "model")
        used += loaded.onnx is not None
        np.testing.assert_allclose(loaded.encode(photos), expected, atol=1e-3 * float(np.abs(expected).max()))
    assert used < 15  # a few bits may make no difference


def test_files_and_card(tmp_path: Path) -> None:
    embedder = run_folder(tmp_path / "run", "small", 16, "letterbox")
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), 8)
    protocol = {"embedder SHA-256": embedder.short_sha()}
    scores = ls.evaluate(rng.normal(size=(40, 16)), y, ks=[1, 2], protocol=protocol)
    scores.save(tmp_path / "run" / "scores.json")
    folder = ls.export(tmp_path / "run", tmp_path / "model", license="apache-2.0")
    names = {"model.onnx", "model.safetensors", "config.json", "preprocessor_config.json", "README.md", "embed.py"}
    assert {file.name for file in folder.iterdir()} == names
    assert len((folder / "embed.py").read_text().splitlines()) <= 80
    assert json.loads((folder / "config.json").read_text())["sha"] == embedder.short_sha()
    assert json.loads((folder / "preprocessor_config.json").read_text())["resize_mode"] == "letterbox"
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    meta = yaml.safe_load(front)
    assert (meta["license"], meta["pipeline_tag"]) == ("apache-2.0", "image-feature-extraction")
    metrics = {each["type"]: each["value"] for each in meta["model-index"][0]["results"][0]["metrics"]}
    assert metrics["Recall@1"] == pytest.approx(100 * scores.recall[1].value, abs=0.05)
    assert f"| Recall@1 | {100 * scores.recall[1].value:.1f} % |" in text
    assert all(f"- {key}: {value}" in text for key, value in scores.protocol.items())


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_folder(tmp_path / "run", "small", 4, "squash")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep")
    with pytest.raises(ValueError, match="out must be a new or empty folder"):
        ls.export(tmp_path / "run", tmp_path / "full")
    with pytest.raises(ValueError, match="an embedder must be an existing file"):
        ls.export(tmp_path / "nowhere", tmp_path / "out")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ValueError, match=re.escape("pip install 'liftedstruct[export]'")):
        ls.export(tmp_path / "run", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "full"}
