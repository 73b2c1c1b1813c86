import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from liftedstruct.data import FolderSource, ImageSet, PackedImages, prepare
from liftedstruct.embedder import EMBEDDER, Embedder, Seen, TrainedOn, open_embedder
from liftedstruct.embeddings import embed
from liftedstruct.trunks import make_trunk
from noise import make_embedder, noise_images, pixels_of, split_again


def images_of(packed: PackedImages, rows: Any) -> tuple[Any, Any, tuple[str, ...]]:
    return packed.contents[rows], packed.labels[rows], packed.class_names


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedImages:
    return noise_images(tmp_path_factory.mktemp("noise"))


def test_forward_is_head_of_features(packed: PackedImages) -> None:
    embedder, pixels = make_embedder(), pixels_of(packed, range(5))
    features = embedder.features(pixels)
    torch.testing.assert_close(features, embedder.trunk(embedder.trunk.scale(pixels)))
    assert isinstance(embedder.linear, nn.Linear)
    expected = features @ embedder.linear.weight.T + embedder.linear.bias
    torch.testing.assert_close(embedder(pixels), expected)
    torch.testing.assert_close(embedder.head(features), expected)
    on_sphere = make_embedder(normalize=True)(pixels)
    torch.testing.assert_close(on_sphere, expected / expected.norm(dim=1, keepdim=True))
    assert make_embedder(0)(pixels).equal(features)
    assert (make_embedder(0).width, make_embedder(7).width, make_embedder(7).dim) == (128, 7, 7)


def test_linear_layer_is_initialized_as_in_the_papers_code() -> None:
    linear = make_embedder(64).linear
    assert isinstance(linear, nn.Linear)
    bound = (3 / 128) ** 0.5
    assert 0.99 * bound < linear.weight.abs().max() <= bound
    assert not linear.bias.any()


def test_dropout_only_in_training() -> None:
    embedder, features = make_embedder(0, dropout=0.4), torch.ones(50, 128)
    assert embedder.head(features).equal(features)
    dropped = embedder.train().head(features)
    assert 0.35 < (dropped == 0).float().mean() < 0.45
    torch.testing.assert_close(dropped.max(), torch.tensor(1 / 0.6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": -1}, r"dim must be a whole number >= 0, got -1"),
        ({"dim": 2.0}, r"dim must be a whole number >= 0, got 2\.0"),
        ({"dropout": 1.0}, r"dropout must be a number >= 0 and < 1, got 1\.0\. The paper's code uses 0\.4"),
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
    embedder, pixels = make_embedder(dim, dropout=0.25, normalize=True), pixels_of(packed, range(5))
    embedder.trunk.weights = "weights of mine"
    file = embedder.save(tmp_path)
    assert file == tmp_path / EMBEDDER
    for path in (tmp_path, file, str(file)):
        again = Embedder.load(path)
        assert again(pixels).equal(embedder(pixels))
        assert (again.dim, again.dropout.p, again.normalize, again.crop) == (dim, 0.25, True, 32)
        assert again.trunk.describe() == "small, weights of mine"
        assert not again.training
    assert [each.name for each in tmp_path.iterdir()] == [EMBEDDER]


def test_equal_embedders_are_equal_bytes(tmp_path: Path) -> None:
    embedder = Embedder(make_trunk("googlenet", pretrained=False, variant="torchvision"), 8)
    contents = {embedder.save(tmp_path / f"{i}.safetensors").read_bytes() for i in range(3)}
    contents.add(Embedder.load(tmp_path / "0.safetensors").save(tmp_path / "again.safetensors").read_bytes())
    assert len(contents) == 1
    assert Embedder.load(tmp_path / "0.safetensors").trunk.variant == "torchvision"


def rewrite(file: Path, **changes: Any) -> None:
    """Change the metadata of an embedder file, and remove entries whose value is None."""
    head = json.loads(file.read_bytes()[8 : 8 + struct.unpack("<Q", file.read_bytes()[:8])[0]])
    meta = json.loads(head["__metadata__"]["liftedstruct"]) | changes
    meta = {name: value for name, value in meta.items() if value is not None}
    save_file(load_file(file), file, {"liftedstruct": json.dumps(meta)})


@pytest.mark.parametrize("pool", ["avg+max", "max"])
def test_pooling_is_saved(pool: str, tmp_path: Path, packed: PackedImages) -> None:
    embedder, pixels = make_embedder(), pixels_of(packed, range(5))
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
    with pytest.raises(ValueError, match=r"pool must be one of avg, avg\+max, max, got 'mean'"):
        Embedder.load(file)


def test_files_that_are_not_embedders(tmp_path: Path) -> None:
    file = tmp_path / EMBEDDER
    with pytest.raises(ValueError, match=r"an embedder must be an existing file, got .*\. Train one, or check the path"):
        Embedder.load(tmp_path)
    file.write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"must be a readable embedder file, got: [^\n]*\. Save it again"):
        Embedder.load(file)
    for metadata in (None, {"liftedstruct": "[]"}, {"other": "x"}):
        save_file({"a": torch.ones(1)}, file, metadata)
        with pytest.raises(ValueError, match=r"must be an embedder file, got other tensors"):
            Embedder.load(file)
    save_file({"a": torch.ones(1)}, file, {"liftedstruct": "{"})
    with pytest.raises(ValueError, match=r"must be a readable embedder file, got"):
        Embedder.load(file)
    whole = make_embedder().save(file).read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"must be a readable embedder file, got"):
        Embedder.load(file)


def test_mismatched_files(tmp_path: Path) -> None:
    file = make_embedder().save(tmp_path / EMBEDDER)
    rewrite(file, dim=17)
    with pytest.raises(ValueError, match=r"must match its trunk small: linear\.weight must be \(17, 128\), got \(16, 128\)"):
        Embedder.load(file)
    rewrite(file, dim=16, trunk="efficientnet_lite0")
    with pytest.raises(ValueError, match=r"trunk\.layers\.stem\.0\.norm\.running_mean must be \(32,\), got nothing"):
        Embedder.load(file)
    rewrite(file, trunk="smal")
    with pytest.raises(ValueError, match="Did you mean 'small'"):
        Embedder.load(file)
    rewrite(file, version=3)
    with pytest.raises(ValueError, match=r"must be of format version 5, got 3"):
        Embedder.load(file)


def test_open_embedder_takes_a_run_a_file_or_a_trunk(
    tmp_path: Path, packed: PackedImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder, pixels = make_embedder(normalize=True), pixels_of(packed, range(5))
    file = embedder.save(tmp_path)
    for source in (tmp_path, file, str(file)):
        assert open_embedder(source)(pixels).equal(embedder(pixels))
        assert open_embedder(source, pooled=True)(pixels).equal(embedder.features(pixels))
        assert open_embedder(source, pooled=True).crop == 32
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()  # the name of a trunk takes precedence
    assert (open_embedder("small").dim, open_embedder("small").trunk.name) == (0, "small")
    state = {name: tensor.contiguous() for name, tensor in embedder.trunk.state_dict().items()}
    save_file(state, tmp_path / "weights.safetensors")
    assert open_embedder("small", tmp_path / "weights.safetensors").features(pixels).equal(embedder.features(pixels))
    with pytest.raises(ValueError, match=r"weights must be passed with a trunk, got the embedder .*, which has its own"):
        open_embedder(file, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match=r"trunk must be one of .*, got 'smal'\. Did you mean 'small'"):
        open_embedder("smal")
    for gone in ("runs/gone", "gone/", "gone.safetensors"):
        with pytest.raises(ValueError, match="an embedder must be an existing file, got"):
            open_embedder(gone)


def test_a_small_file_does_not_allocate_a_large_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make_embedder().save(tmp_path / EMBEDDER)
    rewrite(file, dim=1_000_000)
    drawn: list[int] = []

    def count(tensor: torch.Tensor, *_: float) -> torch.Tensor:
        drawn.append(tensor.numel())
        return tensor

    monkeypatch.setattr(nn.init, "uniform_", count)
    with pytest.raises(ValueError, match=r"linear\.weight must be \(1000000, 128\), got"):
        Embedder.load(file)
    assert max(drawn, default=0) < 1_000_000


def test_seen_images_are_recognized_by_their_files(packed: PackedImages, tmp_path: Path) -> None:
    """Images match by the bytes of their files, at any prepared size; classes also match by name."""
    trained_on = TrainedOn.of(packed, packed.train, packed.validation, 7)  # classes a and b, of 5 images each
    assert trained_on.class_names == ("a", "b")
    assert trained_on.seen(*images_of(packed, packed.test)) == Seen(0, len(packed.test), 0, 2, 0, 0)
    assert trained_on.seen(*images_of(packed, packed.train)) == Seen(10, 10, 2, 2, 0, 0)
    other = split_again(packed, tmp_path / "other", [1, 4])
    assert trained_on.seen(*images_of(other, other.test)) == Seen(5, 9, 1, 2, 0, 0)
    renamed = split_again(packed, tmp_path / "renamed", [1, 4], tuple("vwxyz"))
    assert trained_on.seen(*images_of(renamed, renamed.test)) == Seen(5, 9, 1, 2, 0, 0)
    files = tmp_path / "files"
    files.mkdir()
    for path in packed.paths:
        with Image.open(packed.folder.parent / path) as image:
            image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(files / path)
    images = ImageSet("noise", files, FolderSource(files), packed.paths, packed.labels, packed.class_names, np.array([1, 4]))
    mirrored = prepare(images, tmp_path / "mirrored", size=24, progress=False)
    assert trained_on.seen(*images_of(mirrored, mirrored.test)) == Seen(0, 9, 0, 2, 1, 0)
    assert (
        str(Seen(0, 9, 0, 2, 1, 0)) == "none of 9 images, none of 2 classes; 1 classes only share a name with a training class"
    )


def test_the_training_record_is_saved(packed: PackedImages, tmp_path: Path) -> None:
    embedder = make_embedder()
    embedder.trained_on = TrainedOn.of(packed, packed.train, packed.validation, 7)
    file = embedder.save(tmp_path)
    again = Embedder.load(file)
    assert again.trained_on
    assert (again.trained_on.step, again.trained_on.checksum, again.trained_on.class_names) == (7, packed.checksum, ("a", "b"))
    assert np.array_equal(again.trained_on.images, np.sort(packed.contents[packed.train]))
    assert again.save(tmp_path / "again").read_bytes() == file.read_bytes()
    assert make_embedder().load(make_embedder().save(tmp_path / "bare")).trained_on is None
    rewrite(file, class_names=None)
    with pytest.raises(ValueError, match=r"must be written by Embedder\.save, got None for 'class_names'"):
        Embedder.load(file)


def test_the_training_record_is_not_a_view_of_the_file(packed: PackedImages, tmp_path: Path) -> None:
    embedder = make_embedder()
    embedder.trained_on = TrainedOn.of(packed, packed.train, packed.validation, 7)
    file = embedder.save(tmp_path)
    again = Embedder.load(file)
    with file.open("r+b") as stream:  # overwrite in place, as cp does
        stream.write(b"\0" * file.stat().st_size)
    assert again.trained_on
    assert again.trained_on.seen(*images_of(packed, packed.train)).images == 10


def test_validation_images_are_counted_separately(packed: PackedImages) -> None:
    seen = TrainedOn.of(packed, packed.train, packed.validation, 7).seen(*images_of(packed, packed.validation))
    n = len(packed.validation)
    assert seen == Seen(0, n, 0, 1, 0, n)
    assert str(seen) == f"none of {n} images, none of 1 classes; {n} images were validation images"
    assert seen.any


@pytest.mark.parametrize(
    "changes", [{"step": "abc"}, {"class_names": 5}, {"trunk": [1]}, {"pool": None}, {"normalize": 3}, {"dim": "8"}]
)
def test_metadata_of_another_type(changes: dict[str, Any], packed: PackedImages, tmp_path: Path) -> None:
    embedder = make_embedder()
    embedder.trained_on = TrainedOn.of(packed, packed.train, packed.validation, 7)
    rewrite(embedder.save(tmp_path / EMBEDDER), **changes)
    with pytest.raises(ValueError, match=r"must be written by Embedder\.save, got .* for '\w+'\. Save it again"):
        Embedder.load(tmp_path)
