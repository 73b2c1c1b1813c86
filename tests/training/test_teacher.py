from pathlib import Path

import numpy as np
import pytest
import torch

from liftedstruct.data import PackedImages
from liftedstruct.embeddings import embed
from liftedstruct.losses.distillation import similarity_distillation_loss
from liftedstruct.training import Run
from liftedstruct.training.inputs import teacher_embeddings
from training.sets import products, run


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedImages:
    return products(tmp_path_factory.mktemp("products"))


@pytest.fixture(scope="module")
def teacher(packed: PackedImages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    trained = run(packed, folder / "run", steps=60, dim=8, seed=1)
    rows = np.random.default_rng(0).permutation(len(packed))
    return embed(trained.embedder(), packed, rows).save(folder / "teacher.npz")


def test_images_are_matched_by_content(packed: PackedImages, teacher: Path, tmp_path: Path) -> None:
    T = teacher_embeddings(str(teacher), packed, packed.train)
    assert T.shape == (len(packed), 8)
    assert not T[packed.test].any()
    larger = products(tmp_path / "larger", size=40)  # the same files, prepared at another size
    assert larger.paths == packed.paths
    if (larger.contents == packed.contents).all():
        assert torch.equal(teacher_embeddings(str(teacher), larger, larger.train), T)


def test_similarities_of_the_teacher_are_learned(packed: PackedImages, teacher: Path, tmp_path: Path) -> None:
    T = teacher_embeddings(str(teacher), packed, packed.train)[packed.train]

    def divergence(trained: Run) -> float:
        X = embed(trained.embedder(), packed, packed.train).embeddings
        return similarity_distillation_loss(torch.from_numpy(X), T).item()

    given = {"steps": 40, "validate_every": 0, "lr": 3e-3}
    alone = run(packed, tmp_path / "alone", **given)
    taught = run(packed, tmp_path / "taught", teacher=str(teacher), **given)
    assert divergence(taught) < 0.7 * divergence(alone)
    same = run(packed, tmp_path / "same", teacher=str(teacher), teacher_weight=0, **given)
    assert (same.folder / "embedder.safetensors").read_bytes() == (alone.folder / "embedder.safetensors").read_bytes()
    with pytest.raises(ValueError, match=r"its teacher is None, got"):
        run(packed, tmp_path / "alone", teacher=str(teacher), **given)


def test_a_teacher_that_does_not_fit(packed: PackedImages, teacher: Path, tmp_path: Path) -> None:
    other = embed(run(packed, tmp_path / "run", steps=2).embedder(), packed, packed.test).save(tmp_path / "test.npz")
    with pytest.raises(ValueError, match=r"teacher must have an embedding of every training image, but .* lacks .*--part all"):
        run(packed, tmp_path / "taught", teacher=str(other))
    np.savez(tmp_path / "own.npz", embeddings=np.zeros((4, 2), np.float32), labels=np.arange(4))
    with pytest.raises(ValueError, match=r"teacher must have an embedding of every training image"):
        run(packed, tmp_path / "taught", teacher=str(tmp_path / "own.npz"))
    with pytest.raises(ValueError, match=r"nowhere\.npz"):
        run(packed, tmp_path / "taught", teacher=str(tmp_path / "nowhere.npz"))
