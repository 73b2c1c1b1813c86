import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from liftedstruct.data import ImageSet, MemorySource, prepare
from liftedstruct.training.inputs import Batch, Prefetcher, count_pairable, split_rows
from training.sets import products


def test_classes_with_two_images() -> None:
    assert count_pairable(np.array([3, 1, 3, 7, 7, 7])) == 2


def test_split_is_by_class_and_by_seed(tmp_path: Path) -> None:
    packed = products(tmp_path / "without", validation=0)
    train, held = split_rows(packed, 0.25, 0)
    classes, held_classes = set(packed.labels[train]), set(packed.labels[held])
    assert len(held_classes) == 3
    assert not classes & held_classes
    assert sorted([*train, *held]) == packed.train.tolist()
    assert split_rows(packed, 0.25, 0)[1].tolist() == held.tolist()
    assert any(split_rows(packed, 0.25, seed)[1].tolist() != held.tolist() for seed in (1, 2))
    assert split_rows(packed, 0.0, 0)[1].tolist() == []
    own = products(tmp_path / "own", validation=0.5)
    assert split_rows(own, 0.25, 0)[1].tolist() == own.validation.tolist()  # validation classes of the dataset take precedence


def test_split_keeps_similar_names_together(tmp_path: Path) -> None:
    names = [*"abcdef", *"ABCDEF", "g", "h"]
    pixels = np.random.default_rng(0).integers(256, size=(28, 8, 8, 3), dtype=np.uint8)
    paths, labels = tuple(map(str, range(28))), np.arange(28) // 2
    image_set = ImageSet("arrays", tmp_path, MemorySource(pixels), paths, labels, tuple(names), np.array([12, 13]))
    packed = prepare(image_set, tmp_path / "packed", size=8, progress=False)
    for seed in range(10):
        train, held = split_rows(packed, 0.5, seed)
        assert len(train) == len(held) == 12
        assert not {names[c].lower() for c in packed.labels[train]} & {names[c].lower() for c in packed.labels[held]}
    assert len(split_rows(packed, 0.9, 0)[0]) == 8  # two distinct names
    image_set = ImageSet(
        "arrays", tmp_path, MemorySource(pixels), paths, labels // 4, ("a", "A", "b", "B"), np.array([], np.int64)
    )
    with pytest.raises(ValueError, match="got 2"):
        split_rows(prepare(image_set, tmp_path / "few", size=8, progress=False), 0.5, 0)


def test_one_batch_is_prefetched() -> None:
    made: list[int] = []
    second = threading.Event()

    def make(step: int) -> Batch:
        made.append(step)
        if step == 1:
            second.set()
        return Batch(np.array([step]), torch.tensor([0]), torch.tensor([step]))

    prefetcher = Prefetcher(make)
    assert prefetcher.take(0, prefetch=True).rows.tolist() == [0]
    assert second.wait(10)  # made before step 1 is requested
    assert prefetcher.take(1, prefetch=False).rows.tolist() == [1]
    assert prefetcher.take(2, prefetch=True).rows.tolist() == [2]
    assert prefetcher.take(7, prefetch=False).rows.tolist() == [7]  # not the prefetched step
    prefetcher.close()
    assert made[:3] == [0, 1, 2]
