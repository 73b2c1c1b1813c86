import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from liftedstruct.embedder import EMBEDDER, Embedder, Embeddings, embed, open_embedder
from liftedstruct.images.image_set import ImageSet
from liftedstruct.images.sources import FolderSource
from liftedstruct.packed import PackedImages, prepare
from liftedstruct.trunks import make_trunk

N = 23


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedImages:
    """Noise at 40 pixels: classes a and b to train on, c to validate, d and e to test."""
    root = tmp_path_factory.mktemp("noise")
    rng = np.random.default_rng(0)
    names = (os.fsdecode(b"latin \xe9.png"), "grüße 日本.png", *(f"{i:02}.png" for i in range(N - 2)))
    for name in names:
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(root / name)
    labels, classes = np.arange(N, dtype=np.int64) % 5, ("a", "b", "c\n", "d", "e")
    images = ImageSet("noise", root, FolderSource(root), names, labels, classes, np.array([3, 4]), np.array([2]), ())
    return prepare(images, root / "packed", size=40, progress=False)


def make(dim: int = 16, **options: Any) -> Embedder:
    torch.manual_seed(0)
    return Embedder(make_trunk("small"), dim, crop=32, **options).eval()


def pixels_of(packed: PackedImages, rows: Any) -> torch.Tensor:
    return torch.from_numpy(packed.centre_crops(rows, 32))


def test_the_parts_make_the_whole(packed: PackedImages) -> None:
    embedder, pixels = make(), pixels_of(packed, range(5))
    features = embedder.features(pixels)
    torch.testing.assert_close(features, embedder.trunk(embedder.trunk.scale(pixels)))
    assert isinstance(embedder.linear, nn.Linear)
    expected = features @ embedder.linear.weight.T + embedder.linear.bias
    torch.testing.assert_close(embedder(pixels), expected)
    torch.testing.assert_close(embedder.head(features), expected)
    on_sphere = make(normalize=True)(pixels)
    torch.testing.assert_close(on_sphere, expected / expected.norm(dim=1, keepdim=True))
    assert make(0)(pixels).equal(features)
    assert (make(0).width, make(7).width, make(7).dim) == (128, 7, 7)


def test_last_layer_begins_as_in_the_papers_code() -> None:
    linear = make(64).linear
    assert isinstance(linear, nn.Linear)
    bound = (3 / 128) ** 0.5
    assert 0.99 * bound < linear.weight.abs().max() <= bound
    assert not linear.bias.any()


def test_dropout_is_for_training() -> None:
    embedder, features = make(0, dropout=0.4), torch.ones(50, 128)
    assert embedder.head(features).equal(features)
    dropped = embedder.train().head(features)
    assert 0.35 < (dropped == 0).float().mean() < 0.45
    torch.testing.assert_close(dropped.max(), torch.tensor(1 / 0.6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": -1}, r"dim must be a whole number >= 0, got -1"),
        ({"dim": 2.0}, r"dim must be a whole number >= 0, got 2\.0"),
        ({"dropout": 1.0}, r"dropout must be a number from 0 to below 1, got 1\.0\. The paper's code has 0\.4"),
        ({"dropout": float("nan")}, r"dropout must be a number"),
        ({"dropout": "0.4"}, r"dropout must be a number"),
        ({"crop": 0}, r"crop must be a whole number >= 1, got 0"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Embedder(make_trunk("small"), **options)


@pytest.mark.parametrize("dim", [0, 16])
def test_save_and_load(tmp_path: Path, packed: PackedImages, dim: int) -> None:
    embedder, pixels = make(dim, dropout=0.25, normalize=True), pixels_of(packed, range(5))
    embedder.trunk.weights = "weights of a friend"
    file = embedder.save(tmp_path)
    assert file == tmp_path / EMBEDDER
    for path in (tmp_path, file, str(file)):
        again = Embedder.load(path)
        assert again(pixels).equal(embedder(pixels))
        assert (again.dim, again.dropout.p, again.normalize, again.crop) == (dim, 0.25, True, 32)
        assert again.trunk.describe() == "small, weights of a friend"
        assert not again.training
    assert [each.name for each in tmp_path.iterdir()] == [EMBEDDER]


def test_equal_embedders_are_equal_bytes(tmp_path: Path) -> None:
    embedder = Embedder(make_trunk("googlenet", pretrained=False, form="torchvision"), 8)
    contents = {embedder.save(tmp_path / f"{i}.safetensors").read_bytes() for i in range(3)}
    contents.add(Embedder.load(tmp_path / "0.safetensors").save(tmp_path / "again.safetensors").read_bytes())
    assert len(contents) == 1
    assert Embedder.load(tmp_path / "0.safetensors").trunk.form == "torchvision"


def rewrite(file: Path, **changes: Any) -> None:
    """The same tensors with other words about them; none where a word is None."""
    head = json.loads(file.read_bytes()[8 : 8 + struct.unpack("<Q", file.read_bytes()[:8])[0]])
    meta = json.loads(head["__metadata__"]["liftedstruct"]) | changes
    meta = {name: value for name, value in meta.items() if value is not None}
    save_file(load_file(file), file, {"liftedstruct": json.dumps(meta)})


@pytest.mark.parametrize("pool", ["both", "max"])
def test_the_pool_is_kept(pool: str, tmp_path: Path, packed: PackedImages) -> None:
    embedder, pixels = make(), pixels_of(packed, range(5))
    average = embedder(pixels)
    embedder.trunk.set_pool(pool)
    pooled = embedder(pixels)
    assert not torch.allclose(pooled, average, rtol=0.01)
    file = embedder.save(tmp_path)
    assert Embedder.load(file).trunk.pool == pool
    assert Embedder.load(file)(pixels).equal(pooled)
    assert open_embedder(file, pooled=True)(pixels).equal(embedder.features(pixels))
    result = embed(embedder, packed, range(5))
    assert result.protocol["pool"] == pool
    np.testing.assert_allclose(result.embeddings, pooled.detach().numpy(), rtol=1e-4, atol=1e-5)
    rewrite(file, pool=None)
    assert Embedder.load(file).trunk.pool == "average"  # a file of before there was a choice
    assert Embedder.load(file)(pixels).equal(average)
    rewrite(file, pool="mean")
    with pytest.raises(ValueError, match=r"pool must be one of average, both, max, got 'mean'"):
        Embedder.load(file)


def test_files_that_are_no_embedder(tmp_path: Path) -> None:
    file = tmp_path / EMBEDDER
    with pytest.raises(ValueError, match=r"an embedder must be a file, there is none at .*\. Train one, or check the path"):
        Embedder.load(tmp_path)
    file.write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"must be an embedder, it cannot be read: [^\n]*\. Save it anew"):
        Embedder.load(file)
    for metadata in (None, {"liftedstruct": "[]"}, {"other": "x"}):
        save_file({"a": torch.ones(1)}, file, metadata)
        with pytest.raises(ValueError, match=r"must be an embedder, it holds tensors of something else"):
            Embedder.load(file)
    save_file({"a": torch.ones(1)}, file, {"liftedstruct": "{"})
    with pytest.raises(ValueError, match=r"must be an embedder, it cannot be read"):
        Embedder.load(file)
    whole = make().save(file).read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"must be an embedder, it cannot be read"):
        Embedder.load(file)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    file = make().save(tmp_path / EMBEDDER)
    rewrite(file, dim=17)
    with pytest.raises(ValueError, match=r"must fit its trunk, small: linear\.weight must be \(17, 128\), got \(16, 128\)"):
        Embedder.load(file)
    rewrite(file, dim=16, trunk="efficientnet_lite0")
    with pytest.raises(ValueError, match=r"trunk\.layers\.stem\.0\.norm\.running_mean must be \(32,\), got nothing"):
        Embedder.load(file)
    rewrite(file, trunk="smal")
    with pytest.raises(ValueError, match="Did you mean 'small'"):
        Embedder.load(file)
    rewrite(file, version=2)
    with pytest.raises(ValueError, match=r"must be of version 1, got 2"):
        Embedder.load(file)


@pytest.mark.parametrize("batch_size", [1, 5, 23, 64])
def test_embed_is_the_embedder_on_centre_crops(packed: PackedImages, batch_size: int) -> None:
    embedder = make().train()
    before = {name: tensor.clone() for name, tensor in embedder.state_dict().items()}
    rows = np.random.default_rng(1).permutation(N)[:17] if batch_size == 5 else np.arange(N)
    result = embed(embedder, packed, rows, batch_size=batch_size)
    assert embedder.training
    assert all(before[name].equal(tensor) for name, tensor in embedder.state_dict().items())
    with torch.no_grad():
        expected = embedder.eval()(pixels_of(packed, rows)).numpy()
    np.testing.assert_allclose(result.embeddings, expected, rtol=1e-4, atol=1e-5)
    assert result.embeddings.dtype == np.float32
    assert result.labels.tolist() == packed.labels[rows].tolist()
    assert result.paths == tuple(packed.paths[row] for row in rows)
    assert (result.rows.tolist(), len(result), result.part) == (list(rows), len(rows), "all")


def test_batch_norm_is_folded_without_a_trace(packed: PackedImages) -> None:
    torch.manual_seed(0)
    embedder = Embedder(make_trunk("efficientnet_lite0", pretrained=False), 8, crop=40)
    with torch.no_grad():
        embedder.train()(torch.from_numpy(packed.centre_crops(range(16), 40)))  # statistics that are not 0 and 1
        embedder.eval()
        expected = embedder(torch.from_numpy(packed.centre_crops(range(N), 40))).numpy()
    result = embed(embedder, packed)
    np.testing.assert_allclose(result.embeddings, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    assert sum(isinstance(module, nn.BatchNorm2d) for module in embedder.modules()) == 49


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_part_and_protocol(packed: PackedImages, part: str) -> None:
    rows = getattr(packed, part)
    result = embed(make(), packed, rows, crop=24)
    assert result.part == part
    assert embed(make(), packed, rows[:1]).part == part
    assert embed(make(), packed, [*rows, packed.test[0], packed.train[0]]).part == "all"
    assert result.data == str(packed.folder)
    assert result.protocol == {
        "trunk": "small",
        "form": "",
        "weights": "random weights",
        "pool": "average",
        "dim": 16,
        "normalised": False,
        "data": "noise",
        "checksum": packed.checksum,
        "size": 40,
        "fit": "resize",
        "crop": 24,
    }


def test_embeddings_on_disk(tmp_path: Path, packed: PackedImages) -> None:
    file = tmp_path / "embeddings.npz"
    result = embed(make(), packed, packed.test, out=file)
    again = Embeddings.load(file)
    for name in ("embeddings", "labels", "rows"):
        assert np.array_equal(getattr(again, name), getattr(result, name))
        assert getattr(again, name).dtype == getattr(result, name).dtype
    for name in ("class_names", "paths", "part", "data", "protocol"):
        assert getattr(again, name) == getattr(result, name)
    everything = replace(result, paths=packed.paths, embeddings=np.zeros((N, 2), np.float32))
    assert Embeddings.load(everything.save(tmp_path / "all.npz")).paths == packed.paths  # odd characters and all
    assert again.save(tmp_path / "again.npz").read_bytes() == file.read_bytes()
    with np.load(file, allow_pickle=False) as arrays:
        assert sorted(arrays) == sorted(["embeddings", "labels", "class_names", "paths", "rows", "part", "data", "protocol"])
        assert arrays["protocol"].shape == ()


def test_files_that_are_no_embeddings(tmp_path: Path) -> None:
    file = tmp_path / "embeddings.npz"
    with pytest.raises(ValueError, match=r"embeddings\.npz must be an \.npz file of embed, got: .*No such file"):
        Embeddings.load(file)
    contents: list[dict[str, Any]] = [{"embeddings": np.ones((2, 2))}, {"embeddings": np.array([None])}]
    for content in contents:
        np.savez(file, **content)
        with pytest.raises(ValueError, match=r"must be an \.npz file of embed, got: .*Write it with liftedstruct embed"):
            Embeddings.load(file)
    for damaged in (b"", b"PK\x03\x04 something"):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"must be an \.npz file of embed"):
            Embeddings.load(file)


def test_bad_input_is_refused_before_any_work(tmp_path: Path, packed: PackedImages, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the trunk was asked")

    embedder = make()
    monkeypatch.setattr(Embedder, "forward", refuse)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"crop": 41}, r"crop must be at most the size of the images, 40, got 41"),
        ({"rows": [0, N]}, rf"indices must be 0 to {N - 1}, got 0 to {N}"),
        ({"rows": [[0, 1]]}, r"indices must be a list of integers"),
        ({"rows": [0.5]}, r"indices must be a list of integers"),
        ({"rows": []}, r"rows must be at least one image, got none of"),
        ({"batch_size": 0}, r"batch_size must be a whole number >= 1, got 0"),
        ({"out": tmp_path / "no" / "file.npz"}, r"out must be a file in a folder that is there, got .*Make the folder first"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            embed(embedder, packed, **options)


def test_progress_is_said(packed: PackedImages, capsys: pytest.CaptureFixture[str]) -> None:
    embed(make(), packed, progress=True)
    assert f"embed: {N} of {N} images" in capsys.readouterr().err
    embed(make(), packed)
    assert capsys.readouterr().err == ""


def test_open_embedder_takes_a_run_a_file_or_a_trunk(
    tmp_path: Path, packed: PackedImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder, pixels = make(normalize=True), pixels_of(packed, range(5))
    file = embedder.save(tmp_path)
    for source in (tmp_path, file, str(file)):
        assert open_embedder(source)(pixels).equal(embedder(pixels))
        assert open_embedder(source, pooled=True)(pixels).equal(embedder.features(pixels))
        assert open_embedder(source, pooled=True).crop == 32
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()  # a trunk's name is a trunk
    assert (open_embedder("small").dim, open_embedder("small").trunk.name) == (0, "small")
    state = {name: tensor.contiguous() for name, tensor in embedder.trunk.state_dict().items()}
    save_file(state, tmp_path / "weights.safetensors")
    assert open_embedder("small", tmp_path / "weights.safetensors").features(pixels).equal(embedder.features(pixels))
    with pytest.raises(ValueError, match=r"weights must be for a trunk, .* is an embedder that has its own"):
        open_embedder(file, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match=r"trunk must be one of .*, got 'smal'\. Did you mean 'small'"):
        open_embedder("smal")
    for gone in ("runs/gone", "gone/", "gone.safetensors"):
        with pytest.raises(ValueError, match="an embedder must be a file, there is none at"):
            open_embedder(gone)
