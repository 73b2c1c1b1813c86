import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from liftedstruct.batches import MinedBatches
from liftedstruct.training.sources import Ahead, Batch, difficult_neighbours, fitting_size, split
from training.sets import products


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 30), st.integers(1, 6), st.integers(1, 8), st.integers(0, 99))
def test_difficult_neighbours_by_loops(n: int, classes: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    y = rng.integers(classes, size=n)
    expected = np.full((n, count), -1)
    for i in range(n):
        others = sorted((float(((X[i] - X[j]).astype(np.float64) ** 2).sum()), j) for j in range(n) if y[j] != y[i])
        near = [j for _, j in others[:count]]
        expected[i, : len(near)] = near
    table = difficult_neighbours(X, y, count)
    assert table.tolist() == expected.tolist()


def test_mined_batches_take_them() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(10), 4)
    X = rng.normal(size=(40, 2)).astype(np.float32)
    table = difficult_neighbours(X, y, 5)
    batch = MinedBatches(y, table, 12, mined=0.5, seed=0).batch(3)
    nearest = {int(table[i, 0]) for i in batch[:6]}
    assert nearest - set(batch[:6]) <= set(batch[6:])


@pytest.mark.parametrize(
    ("batches", "images", "sizes", "expected"),
    [
        ("balanced", 2, [4] * 100, 64),
        ("balanced", 2, [4] * 10, 20),
        ("balanced", 4, [4] * 9 + [3], 36),  # 40 would be more than there are
        ("mined", 2, [4] * 10, 40),
        ("pairs", 2, [3] * 5, 12),
        ("triplets", 2, [4] * 5, 18),
    ],
)
def test_a_batch_that_the_data_can_fill(batches: str, images: int, sizes: list[int], expected: int) -> None:
    assert fitting_size(batches, images, np.repeat(np.arange(len(sizes)), sizes)) == expected


def test_split_is_by_class_and_by_seed(tmp_path: Path) -> None:
    packed = products(tmp_path / "without", validation=0)
    train, held = split(packed, 0.25, 0)
    classes, held_classes = set(packed.labels[train]), set(packed.labels[held])
    assert len(held_classes) == 3
    assert not classes & held_classes
    assert sorted([*train, *held]) == packed.train.tolist()
    assert split(packed, 0.25, 0)[1].tolist() == held.tolist()
    assert any(split(packed, 0.25, seed)[1].tolist() != held.tolist() for seed in (1, 2))
    assert split(packed, 0.0, 0)[1].tolist() == []
    own = products(tmp_path / "own", validation=0.5)
    assert split(own, 0.25, 0)[1].tolist() == own.validation.tolist()  # those of the packed set come first


def test_one_batch_ahead() -> None:
    made: list[int] = []
    second = threading.Event()

    def make(step: int) -> Batch:
        made.append(step)
        if step == 1:
            second.set()
        return Batch(np.array([step]), torch.tensor([0]), torch.tensor([step]))

    ahead = Ahead(make)
    assert ahead.take(0, one_more=True).rows.tolist() == [0]
    assert second.wait(10)  # made while step 0 is at work
    assert ahead.take(1, one_more=False).rows.tolist() == [1]
    assert ahead.take(2, one_more=True).rows.tolist() == [2]
    assert ahead.take(7, one_more=False).rows.tolist() == [7]  # another step than was expected
    ahead.close()
    assert made[:3] == [0, 1, 2]
