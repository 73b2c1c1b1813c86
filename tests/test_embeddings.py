import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from liftedstruct.data import PackedImages
from liftedstruct.embedder import EMBEDDER, Embedder, Seen, TrainedOn, open_embedder
from liftedstruct.embeddings import EMBEDDINGS, Embeddings, check_current, embed
from liftedstruct.trunks import make_trunk
from noise import N, make_embedder, noise_images, pixels_of, split_again


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedImages:
    return noise_images(tmp_path_factory.mktemp("noise"))


@pytest.mark.parametrize("batch_size", [1, 5, 23, 64])
def test_embed_matches_the_embedder_on_center_crops(packed: PackedImages, batch_size: int) -> None:
    embedder = make_embedder().train()
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


@pytest.mark.parametrize("unit", [False, True])
def test_mirror_averaging(packed: PackedImages, unit: bool) -> None:
    embedder = make_embedder().eval()
    embedder.normalize = unit
    pixels = pixels_of(packed, np.arange(N))
    with torch.no_grad():
        both = (embedder(pixels) + embedder(torch.from_numpy(pixels.numpy()[:, :, ::-1].copy()))).numpy() / 2
    expected = both / np.linalg.norm(both, axis=1, keepdims=True) if unit else both
    result = embed(embedder, packed, batch_size=7, hflip=True)
    np.testing.assert_allclose(result.embeddings, expected, rtol=1e-4, atol=1e-5)
    assert result.protocol["hflip"] == "averaged"
    assert "hflip" not in embed(embedder, packed).protocol


def test_batch_norm_is_folded_in_a_copy(packed: PackedImages) -> None:
    torch.manual_seed(0)
    embedder = Embedder(make_trunk("efficientnet_lite0", pretrained=False), 8, crop=40)
    with torch.no_grad():
        embedder.train()(torch.from_numpy(packed.center_crops(range(16), 40)))  # running statistics other than 0 and 1
        embedder.eval()
        expected = embedder(torch.from_numpy(packed.center_crops(range(N), 40))).numpy()
    result = embed(embedder, packed)
    np.testing.assert_allclose(result.embeddings, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    assert sum(isinstance(module, nn.BatchNorm2d) for module in embedder.modules()) == 49


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_part_and_protocol(packed: PackedImages, part: str) -> None:
    rows = getattr(packed, part)
    result = embed(make_embedder(), packed, rows, crop=24)
    assert result.part == part
    assert embed(make_embedder(), packed, rows[:1]).part == part
    assert embed(make_embedder(), packed, [*rows, packed.test[0], packed.train[0]]).part == "all"
    assert result.data == str(packed.folder)
    dataset = f"{packed.folder.name} (checksum {packed.checksum[:12]})"
    assert result.protocol == {
        "embeddings of": f"small, no training recorded; {part} images of {dataset}",
        "embedder SHA-256": make_embedder().short_sha(),
        "trunk": "small",
        "variant": "",
        "weights": "random weights",
        "pool": "avg",
        "dim": 16,
        "normalized": False,
        "data": "noise",
        "checksum": packed.checksum,
        "size": 40,
        "resize_mode": "squash",
        "crop": 24,
    }


def test_save_and_load(tmp_path: Path, packed: PackedImages) -> None:
    file = tmp_path / "embeddings.npz"
    result = embed(make_embedder(), packed, packed.test)
    result.save(file)
    again = Embeddings.load(file)
    for name in ("embeddings", "labels", "rows", "contents"):
        assert np.array_equal(getattr(again, name), getattr(result, name))
        assert getattr(again, name).dtype == getattr(result, name).dtype
    for name in ("class_names", "paths", "seen", "part", "data", "protocol"):
        assert getattr(again, name) == getattr(result, name)
    everything = embed(make_embedder(), packed)
    assert Embeddings.load(everything.save(tmp_path / "all.npz")).paths == packed.paths  # with unusual characters
    assert again.save(tmp_path / "again.npz").read_bytes() == file.read_bytes()
    with np.load(file, allow_pickle=False) as arrays:
        assert sorted(arrays) == sorted(Embeddings.__dataclass_fields__)
        assert arrays["protocol"].shape == ()


def test_plain_files(tmp_path: Path) -> None:
    """Files of np.savez and np.save can be loaded; missing attributes are empty."""
    X, names = np.eye(3), np.array(["b", "b", "ö"])
    np.savez(tmp_path / "both.npz", embeddings=X, labels=names, protocol=json.dumps({"trunk": "small", "size": 64}), more=X)
    np.save(tmp_path / "alone.npy", X)
    np.save(tmp_path / "labels.npy", np.array([7, 7, 2**60]))
    (tmp_path / "labels.txt").write_text("x y\nx y\r\nö\n\n", encoding="utf-8")
    found = Embeddings.load(tmp_path / "both.npz")
    assert found.embeddings.tolist() == X.tolist()
    assert found.embeddings.dtype == X.dtype
    assert (found.labels.tolist(), found.class_names) == ([0, 0, 1], ("b", "ö"))
    assert (found.paths, len(found.rows), len(found.contents), found.seen) == ((), 0, 0, None)
    assert (found.part, found.data, found.protocol) == ("all", "", {"trunk": "small", "size": 64})
    numbered = Embeddings.load(tmp_path / "alone.npy", tmp_path / "labels.npy")
    assert (numbered.labels.tolist(), numbered.class_names) == ([0, 0, 1], ("7", str(2**60)))
    assert Embeddings.load(str(tmp_path / "both.npz"), str(tmp_path / "labels.txt")).class_names == ("x y", "ö")
    again = Embeddings.load(found.save(tmp_path / "again.npz"))
    assert (again.class_names, again.paths, again.part, again.data) == (found.class_names, (), "all", "")


def test_a_labels_file_replaces_the_labels(packed: PackedImages, tmp_path: Path) -> None:
    file = tmp_path / "test.npz"
    embed(make_embedder(), packed, packed.test).save(file)
    np.save(tmp_path / "labels.npy", np.arange(len(packed.test)) // 4)
    found = Embeddings.load(file, tmp_path / "labels.npy")
    assert found.class_names == ("0", "1")
    assert found.paths == tuple(packed.paths[row] for row in packed.test)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    X = np.eye(2)
    np.savez(tmp_path / "unnamed.npz", X)
    np.savez(tmp_path / "unlabeled.npz", embeddings=X)
    np.savez(tmp_path / "objects.npz", embeddings=X, labels=np.array(["a", 1], dtype=object))
    np.savez(tmp_path / "floats.npz", embeddings=X, labels=np.array([0.0, 1.0]))
    np.savez(tmp_path / "words.npz", embeddings=X, labels=[0, 0], protocol="EfficientNet")
    np.savez(tmp_path / "short.npz", embeddings=X, labels=[0])
    np.savez(tmp_path / "one-path.npz", embeddings=X, labels=[0, 0], paths="x")
    np.savez(tmp_path / "part.npz", embeddings=X, labels=[0, 0], part="weird")
    np.savez(tmp_path / "beyond.npz", embeddings=X, labels=[0, 7], class_names=["a", "b"])
    np.save(tmp_path / "alone.npy", X)
    (tmp_path / "text.npz").write_text("not an archive")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "objects.npz").read_bytes()[:90])
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "latin.txt").write_bytes("größe\n".encode("latin-1"))
    (tmp_path / "folder").mkdir()
    for file, labels, text in (
        ("nowhere", None, "must be an existing file or run folder"),
        ("folder", None, r"must hold embeddings\.npz"),
        ("latin.txt", None, r"\.npz or \.npy file"),
        ("unnamed.npz", None, "must hold an array 'embeddings'"),
        ("unlabeled.npz", None, "must come with labels"),
        ("alone.npy", None, "must come with labels"),
        ("objects.npz", None, r"'labels' holds Python objects\. Save text with"),
        ("floats.npz", None, "labels must be integers or strings"),
        ("words.npz", None, "got: "),
        ("short.npz", None, "labels"),
        ("one-path.npz", None, "paths of shape"),
        ("part.npz", None, "part 'weird'"),
        ("beyond.npz", None, "class names"),
        ("text.npz", None, r"text\.npz must hold arrays"),
        ("cut.npz", None, "must hold arrays"),
        ("empty.npy", None, "must hold arrays"),
        ("alone.npy", "latin.txt", r"UTF-8 text file, got .*latin\.txt"),
        ("alone.npy", "empty.npy", r"empty\.npy must hold arrays"),
    ):
        with pytest.raises(ValueError, match=text) as caught:
            Embeddings.load(tmp_path / file, labels and tmp_path / labels)
        assert "\n" not in str(caught.value)


def test_bad_input_is_refused_before_any_work(packed: PackedImages, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the embedder was called")

    embedder = make_embedder()
    monkeypatch.setattr(Embedder, "forward", refuse)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"crop": 41}, r"crop must be at most the size of the images, 40, got 41"),
        ({"rows": [0, N]}, rf"indices must be from 0 to {N - 1}, got 0 to {N}"),
        ({"rows": [[0, 1]]}, r"indices must be a list of integers"),
        ({"rows": [0.5]}, r"indices must be a list of integers"),
        ({"rows": []}, r"rows must select at least one image, got none of"),
        ({"batch_size": 0}, r"batch_size must be a whole number >= 1, got 0"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            embed(embedder, packed, **options)


def test_progress_is_shown(packed: PackedImages, capsys: pytest.CaptureFixture[str]) -> None:
    embed(make_embedder(), packed, progress=True)
    assert f"embed: {N} of {N} images" in capsys.readouterr().err
    embed(make_embedder(), packed)
    assert capsys.readouterr().err == ""


def test_random_trunks_are_seeded(packed: PackedImages) -> None:
    state = torch.get_rng_state()
    one, two, other = (embed(open_embedder("small", seed=seed), packed, packed.test, crop=32) for seed in (0, 0, 1))
    assert np.array_equal(one.embeddings, two.embeddings)
    assert not np.allclose(one.embeddings, other.embeddings)
    assert one.protocol["weights"] == "random weights, seed 0"
    assert torch.get_rng_state().equal(state)


def test_training_classes_are_refused_as_test_classes(packed: PackedImages, tmp_path: Path) -> None:
    embedder = make_embedder()
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
    embedder, file = make_embedder(), tmp_path / EMBEDDINGS
    embedder.trained_on = TrainedOn.of(packed, packed.train, packed.validation, 12)
    embedder.save(tmp_path)
    found = embed(Embedder.load(tmp_path), packed, packed.test)
    found.save(file)
    assert len(Embeddings.load(tmp_path)) == len(found)
    embedder.trained_on = TrainedOn.of(packed, packed.train, packed.validation, 60)  # the same weights at a later step
    embedder.save(tmp_path)
    with pytest.raises(ValueError, match=r"\(step 12, the run's is from step 60\)\. Run: liftedstruct embed .* prepared$"):
        check_current(file, found.protocol, "prepared")
    with pytest.raises(ValueError, match="must be from the run's current embedder"):
        Embeddings.load(tmp_path)
    check_current(tmp_path / "elsewhere.npz", found.protocol)  # not a file of the run
    with pytest.raises(ValueError, match=r"Run: liftedstruct embed .* 'the data' --part all$"):
        check_current(tmp_path / "scores.json", found.protocol, "the data", "all")
    half = Embedder.load(tmp_path).half().save(tmp_path)  # the loaded weights count, not the bytes of the file
    found = embed(Embedder.load(half), packed, packed.test)
    check_current(file, found.protocol)
    make_embedder(8).save(tmp_path)
    with pytest.raises(ValueError, match=r"\(step 60, the run's is from step unknown\)"):
        check_current(file, found.protocol)
    (tmp_path / EMBEDDER).unlink()
    check_current(file, found.protocol)


def test_damaged_embeddings(packed: PackedImages, tmp_path: Path) -> None:
    file = tmp_path / "test.npz"
    embed(make_embedder(), packed, packed.test).save(file)
    with np.load(file) as arrays:
        whole = dict(arrays)
    for name, value in {"contents": 3.0, "seen": [np.inf] * 6, "class_names": [1, 2], "protocol": "[" * 100_000}.items():
        np.savez(file, **whole | {name: np.array(value)})
        with pytest.raises(ValueError, match=r"test\.npz must hold .* Write it again with liftedstruct embed"):
            Embeddings.load(file)
