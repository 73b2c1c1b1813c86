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

from liftedstruct.data import PackedImages, prepare
from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.sources import FolderSource
from liftedstruct.embedder import (
    EMBEDDER,
    EMBEDDINGS,
    Embedder,
    Embeddings,
    Seen,
    TrainedOn,
    check_current,
    embed,
    open_embedder,
)
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
    return torch.from_numpy(packed.center_crops(rows, 32))


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
    rewrite(file, pool="mean")
    with pytest.raises(ValueError, match=r"pool must be one of average, both, max, got 'mean'"):
        Embedder.load(file)


def test_files_that_are_no_embedder(tmp_path: Path) -> None:
    file = tmp_path / EMBEDDER
    with pytest.raises(ValueError, match=r"an embedder must be a file, there is none at .*\. Train one, or check the path"):
        Embedder.load(tmp_path)
    file.write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"must be an embedder, it cannot be read: [^\n]*\. Save it again"):
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
    rewrite(file, version=3)
    with pytest.raises(ValueError, match=r"must be of version 2, got 3"):
        Embedder.load(file)


@pytest.mark.parametrize("batch_size", [1, 5, 23, 64])
def test_embed_is_the_embedder_on_center_crops(packed: PackedImages, batch_size: int) -> None:
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
        embedder.train()(torch.from_numpy(packed.center_crops(range(16), 40)))  # statistics that are not 0 and 1
        embedder.eval()
        expected = embedder(torch.from_numpy(packed.center_crops(range(N), 40))).numpy()
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
        "embeddings of": f"small, no training recorded; {part} part of {packed.folder.name} (checksum {packed.checksum[:12]})",
        "embedder SHA-256": make().short_sha(),
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
    for name in ("embeddings", "labels", "rows", "contents"):
        assert np.array_equal(getattr(again, name), getattr(result, name))
        assert getattr(again, name).dtype == getattr(result, name).dtype
    for name in ("class_names", "paths", "seen", "part", "data", "protocol"):
        assert getattr(again, name) == getattr(result, name)
    everything = replace(result, paths=packed.paths, embeddings=np.zeros((N, 2), np.float32))
    assert Embeddings.load(everything.save(tmp_path / "all.npz")).paths == packed.paths  # odd characters and all
    assert again.save(tmp_path / "again.npz").read_bytes() == file.read_bytes()
    with np.load(file, allow_pickle=False) as arrays:
        assert sorted(arrays) == sorted(Embeddings.__dataclass_fields__)
        assert arrays["protocol"].shape == ()


def test_files_that_are_no_embeddings(tmp_path: Path) -> None:
    file = tmp_path / "embeddings.npz"
    with pytest.raises(ValueError, match=r"embeddings\.npz must be an \.npz file of embed, got: .*No such file"):
        Embeddings.load(file)
    contents: list[dict[str, Any]] = [{"embeddings": np.ones((2, 2))}, {"embeddings": np.array([None])}]
    for content in contents:
        np.savez(file, **content)
        with pytest.raises(ValueError, match=r"must be an \.npz file of embed, got: .*Write it again with liftedstruct embed"):
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
        ({"out": tmp_path / "no" / "file.npz"}, r"out must be a file in a folder that exists, got .*"),
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


def test_a_small_file_does_not_make_a_large_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make().save(tmp_path / EMBEDDER)
    rewrite(file, dim=1_000_000)
    drawn: list[int] = []

    def count(tensor: torch.Tensor, *_: float) -> torch.Tensor:
        drawn.append(tensor.numel())
        return tensor

    monkeypatch.setattr(nn.init, "uniform_", count)
    with pytest.raises(ValueError, match=r"linear\.weight must be \(1000000, 128\), got"):
        Embedder.load(file)
    assert max(drawn, default=0) < 1_000_000


def test_untrained_trunks_are_seeded(packed: PackedImages) -> None:
    state = torch.get_rng_state()
    one, two, other = (embed(open_embedder("small", seed=seed), packed, packed.test, crop=32) for seed in (0, 0, 1))
    assert np.array_equal(one.embeddings, two.embeddings)
    assert not np.allclose(one.embeddings, other.embeddings)
    assert one.protocol["weights"] == "random weights, seed 0"
    assert torch.get_rng_state().equal(state)


def split_again(packed: PackedImages, folder: Path, test: list[int], names: tuple[str, ...] | None = None) -> PackedImages:
    """The same files with another split of the classes, and perhaps other names."""
    images = ImageSet("noise", packed.folder.parent, FolderSource(packed.folder.parent), packed.paths, packed.labels,
                      names or packed.class_names, np.array(test), super_classes=())  # fmt: skip
    return prepare(images, folder, size=24, progress=False)


def test_what_training_has_seen_is_told_by_the_files(packed: PackedImages, tmp_path: Path) -> None:
    """By their bytes, whatever size they were prepared at, and by names of classes where no file is the same."""
    trained_on = TrainedOn.of(packed, packed.train, packed.validation, 7)  # classes a and b, of 5 images each
    assert trained_on.class_names == ("a", "b")
    assert trained_on.seen(packed, packed.test) == Seen(0, len(packed.test), 0, 2, 0, 0)
    assert trained_on.seen(packed, packed.train) == Seen(10, 10, 2, 2, 0, 0)
    other = split_again(packed, tmp_path / "other", [1, 4])
    assert trained_on.seen(other, other.test) == Seen(5, 9, 1, 2, 0, 0)
    renamed = split_again(packed, tmp_path / "renamed", [1, 4], tuple("vwxyz"))
    assert trained_on.seen(renamed, renamed.test) == Seen(5, 9, 1, 2, 0, 0)
    files = tmp_path / "files"
    files.mkdir()
    for path in packed.paths:
        with Image.open(packed.folder.parent / path) as image:
            image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(files / path)
    images = ImageSet("noise", files, FolderSource(files), packed.paths, packed.labels, packed.class_names, np.array([1, 4]))
    mirrored = prepare(images, tmp_path / "mirrored", size=24, progress=False)
    assert trained_on.seen(mirrored, mirrored.test) == Seen(0, 9, 0, 2, 1, 0)
    assert (
        str(Seen(0, 9, 0, 2, 1, 0)) == "none of 9 images, none of 2 classes; 1 classes only share a name with a training class"
    )


def test_trained_classes_are_no_test_classes(packed: PackedImages, tmp_path: Path) -> None:
    embedder = make()
    embedder.trained_on = TrainedOn.of(packed, packed.train, packed.validation, 7)
    embedder = Embedder.load(embedder.save(tmp_path / "run.safetensors"))
    assert embed(embedder, packed, packed.test).seen == Seen(0, 8, 0, 2, 0, 0)
    other = split_again(packed, tmp_path / "other", [1, 4])
    for each in (embedder, open_embedder(tmp_path / "run.safetensors", pooled=True)):
        with pytest.raises(ValueError, match=r"the test classes of .*other must be unseen, .*") as caught:
            embed(each, other, other.test, crop=24)
        assert "was trained on 5 of 9 images, 1 of 2 classes. Prepare" in str(caught.value)
    everything = embed(embedder, other, crop=24)
    assert everything.seen == Seen(10, N, 2, 5, 0, 5)
    assert everything.protocol["seen in training"] == f"10 of {N} images, 2 of 5 classes; 5 images were validation images"
    assert everything.protocol["embeddings of"].endswith(f"step 7; all images of other (checksum {other.checksum[:12]})")


def test_embeddings_of_another_embedder_are_stale(packed: PackedImages, tmp_path: Path) -> None:
    embedder, file = make(), tmp_path / EMBEDDINGS
    embedder.trained_on = TrainedOn.of(packed, packed.train, packed.validation, 12)
    embedder.save(tmp_path)
    found = embed(Embedder.load(tmp_path), packed, packed.test, out=file)
    check_current(file, found.protocol)
    embedder.trained_on = TrainedOn.of(packed, packed.train, packed.validation, 60)  # the same weights, later
    embedder.save(tmp_path)
    with pytest.raises(ValueError, match=r"\(of step 12, the run's is of step 60\)\. Run: liftedstruct embed .* prepared$"):
        check_current(file, found.protocol, "prepared")
    check_current(tmp_path / "elsewhere.npz", found.protocol)  # a file by itself is of no run
    with pytest.raises(ValueError, match=r"Run: liftedstruct embed .* 'the data' --part all$"):
        check_current(tmp_path / "scores.json", found.protocol, "the data", "all")
    half = Embedder.load(tmp_path).half().save(tmp_path)  # what is read of it is what counts, not its bytes
    found = embed(Embedder.load(half), packed, packed.test)
    check_current(file, found.protocol)
    make(8).save(tmp_path)
    with pytest.raises(ValueError, match=r"\(of step 60, the run's is of step unknown\)"):
        check_current(file, found.protocol)
    (tmp_path / EMBEDDER).unlink()
    check_current(file, found.protocol)


def test_the_record_of_the_training_is_part_of_the_file(packed: PackedImages, tmp_path: Path) -> None:
    embedder = make()
    embedder.trained_on = TrainedOn.of(packed, packed.train, packed.validation, 7)
    file = embedder.save(tmp_path)
    again = Embedder.load(file)
    assert again.trained_on
    assert (again.trained_on.step, again.trained_on.checksum, again.trained_on.class_names) == (7, packed.checksum, ("a", "b"))
    assert np.array_equal(again.trained_on.images, np.sort(packed.contents[packed.train]))
    assert again.save(tmp_path / "again").read_bytes() == file.read_bytes()
    assert make().load(make().save(tmp_path / "bare")).trained_on is None
    rewrite(file, class_names=None)
    with pytest.raises(ValueError, match=r"must be as Embedder\.save wrote it, its 'class_names' is None"):
        Embedder.load(file)


def test_the_record_is_no_view_of_the_file(packed: PackedImages, tmp_path: Path) -> None:
    embedder = make()
    embedder.trained_on = TrainedOn.of(packed, packed.train, packed.validation, 7)
    file = embedder.save(tmp_path)
    again = Embedder.load(file)
    with file.open("r+b") as stream:  # in place, as cp does
        stream.write(b"\0" * file.stat().st_size)
    assert again.trained_on
    assert again.trained_on.seen(packed, packed.train).images == 10


def test_validation_images_are_counted_apart(packed: PackedImages) -> None:
    seen = TrainedOn.of(packed, packed.train, packed.validation, 7).seen(packed, packed.validation)
    n = len(packed.validation)
    assert seen == Seen(0, n, 0, 1, 0, n)
    assert str(seen) == f"none of {n} images, none of 1 classes; {n} images were validation images"
    assert seen.any


@pytest.mark.parametrize(
    "changes", [{"step": "abc"}, {"class_names": 5}, {"trunk": [1]}, {"pool": None}, {"normalize": 3}, {"dim": "8"}]
)
def test_metadata_of_another_type(changes: dict[str, Any], packed: PackedImages, tmp_path: Path) -> None:
    embedder = make()
    embedder.trained_on = TrainedOn.of(packed, packed.train, packed.validation, 7)
    rewrite(embedder.save(tmp_path / EMBEDDER), **changes)
    with pytest.raises(ValueError, match=r"must be as Embedder\.save wrote it, its '\w+' is .* Save it again"):
        Embedder.load(tmp_path)


def test_damaged_embeddings(packed: PackedImages, tmp_path: Path) -> None:
    file = tmp_path / "test.npz"
    embed(make(), packed, packed.test, out=file)
    with np.load(file) as arrays:
        whole = dict(arrays)
    for name, value in {"contents": 3.0, "seen": [np.inf] * 6, "class_names": [1, 2], "protocol": "[" * 100_000}.items():
        np.savez(file, **whole | {name: np.array(value)})
        with pytest.raises(ValueError, match=r"must be an \.npz file of embed, got: .* Write it again with liftedstruct embed"):
            Embeddings.load(file)
