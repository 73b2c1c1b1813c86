import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from liftedstruct import contrastive_loss, triplet_loss
from liftedstruct.samplers import (
    BATCHES,
    BalancedBatches,
    Batches,
    MinedBatches,
    PairBatches,
    TripletBatches,
    shuffled,
    triangle,
)

Y = np.repeat(np.arange(30), np.arange(1, 31) % 7 + 1)  # classes of 1 to 7 images
Y = np.random.default_rng(0).permutation(Y)
N = len(Y)


def neighbours(h: int = 6) -> np.ndarray:
    """Other-class images by the distance of their numbers."""
    table = np.full((N, h), -1)
    for i in range(N):
        others = [k for k in sorted(range(N), key=lambda k: (abs(k - i), k)) if Y[k] != Y[i]][:h]
        table[i, : len(others)] = others
    return table


def make(name: str, rank: int = 0, world_size: int = 1) -> Batches:
    if name == "pairs":
        return PairBatches(Y, 32, seed=5, rank=rank, world_size=world_size)
    if name == "triplets":
        return TripletBatches(Y, 24, seed=5, rank=rank, world_size=world_size)
    if name == "balanced":
        return BalancedBatches(Y, 8, 3, seed=5, rank=rank, world_size=world_size)
    return MinedBatches(Y, neighbours(), 32, seed=5, rank=rank, world_size=world_size)


def listed(sampler: Batches) -> list[list[int]]:
    """The batches of an epoch."""
    return [batch.tolist() for batch in sampler]


class Numbers(Dataset[int]):
    """A data set whose images are their own indices."""

    def __getitem__(self, i: int) -> int:
        return i


def test_every_kind_is_made_here() -> None:
    assert {name: type(make(name)) for name in BATCHES} == BATCHES


@pytest.mark.parametrize("name", BATCHES)
class TestEverySampler:
    def test_same_seed_same_batches(self, name: str) -> None:
        first, second = make(name), make(name)
        for a, b in zip(first, second, strict=True):
            assert a.dtype == np.int64
            assert a.shape == (first.batch_size,)
            np.testing.assert_array_equal(a, b)
        assert not all(np.array_equal(make(name).batch(0), make(name).batch(t)) for t in range(1, 4))

    def test_other_seed_other_batches(self, name: str) -> None:
        sampler = make(name)
        before = [sampler.batch(t).tolist() for t in range(5)]
        sampler.seed = 6
        assert [sampler.batch(t).tolist() for t in range(5)] != before

    def test_an_iteration_is_an_epoch_and_the_next_one_is_the_next(self, name: str) -> None:
        sampler = make(name)
        n = sampler.steps_per_epoch
        assert len(sampler) == n > 1
        for epoch in range(3):
            assert listed(sampler) == [sampler.batch(t).tolist() for t in range(epoch * n, (epoch + 1) * n)]
        _ = next(iter(sampler))  # left early
        assert listed(sampler) == [sampler.batch(t).tolist() for t in range(4 * n, 5 * n)]
        iter(sampler)  # never used
        assert listed(sampler)[0] == sampler.batch(5 * n).tolist()
        for epoch in (7, 7, 0, 1):
            sampler.set_epoch(epoch)
            assert listed(sampler)[0] == sampler.batch(epoch * n).tolist()
        with pytest.raises(ValueError, match="epoch must be a whole number >= 0, got -1"):
            sampler.set_epoch(-1)

    def test_a_state_resumes_exactly(self, name: str) -> None:
        sampler = make(name)
        n = sampler.steps_per_epoch
        _ = listed(sampler), listed(sampler)
        state = json.loads(json.dumps(sampler.state_dict()))
        restored = make(name)
        restored.load_state_dict(state)
        assert listed(restored) == listed(sampler) == [sampler.batch(t).tolist() for t in range(2 * n, 3 * n)]
        for choose_epoch in (False, True):  # within an epoch
            restored.load_state_dict(make(name).state_dict(step=n + 1))
            if choose_epoch:
                restored.set_epoch(1)
            assert listed(restored) == [sampler.batch(t).tolist() for t in range(n + 1, 2 * n)]
            assert listed(restored) == [sampler.batch(t).tolist() for t in range(2 * n, 3 * n)]
        restored.load_state_dict(make(name).state_dict(step=n))  # at its end: there is no empty epoch
        assert len(listed(restored)) == n
        with pytest.raises(ValueError, match="step must be a whole number >= 0, got -1"):
            restored.load_state_dict({key: value for key, value in state.items() if key != "step"})

    @pytest.mark.parametrize("stop", [None, 1])
    def test_a_loader_has_the_same_batches_for_any_number_of_workers(self, name: str, stop: int | None) -> None:
        found = []
        for options in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
            sampler = make(name)
            sampler.load_state_dict(sampler.state_dict(step=1))
            loader: DataLoader[int] = DataLoader(Numbers(), batch_sampler=sampler, **options)  # type: ignore[arg-type]
            found.append([batch.tolist() for _ in range(3) for batch in islice(loader, stop)])
        n, sampler = len(sampler), make(name)
        epochs = [range(1, n), range(n, 2 * n), range(2 * n, 3 * n)]
        expected = [sampler.batch(t).tolist() for epoch in epochs for t in list(epoch)[:stop]]
        assert found == [expected] * 3

    def test_state_of_other_batches_is_refused(self, name: str) -> None:
        state = make(name).state_dict()
        for key, value in (("seed", 6), ("batch_size", 8), ("batches", "OtherBatches"), ("labels", "3 images")):
            with pytest.raises(ValueError, match=f"must be of the same batches: {key} is {value!r} there"):
                make(name).load_state_dict({**state, key: value})

    def test_ranks_together_see_the_batches_of_one_process(self, name: str) -> None:
        whole, parts = make(name), [make(name, rank=rank, world_size=2) for rank in range(2)]
        for _ in range(2):
            for first, second, both in zip(*parts, whole, strict=True):
                np.testing.assert_array_equal(np.concatenate((first, second)), both)
        alone = make(name)
        alone.load_state_dict(parts[1].state_dict(step=5))  # a run may resume with another number of ranks
        np.testing.assert_array_equal(next(iter(alone)), whole.batch(5))

    def test_bad_ranks(self, name: str) -> None:
        with pytest.raises(ValueError, match="rank must be less than world_size, got rank 2 of 2"):
            make(name, rank=2, world_size=2)
        with pytest.raises(ValueError, match="batch_size must be a multiple of"):
            make(name, rank=0, world_size=5)


class TestPairs:
    def test_an_epoch_is_every_positive_pair_once(self) -> None:
        for self_pairs in (False, True):
            sampler = PairBatches(Y, 20, seed=3, self_pairs=self_pairs)
            expected = {(i, j) for i in range(N) for j in range(i if self_pairs else i + 1, N) if Y[i] == Y[j]}
            stream = np.concatenate([sampler.batch(t).reshape(-1, 2, 2)[:, 0] for t in range(2 * sampler.steps_per_epoch)])
            for epoch in range(2):
                pairs = np.sort(stream[epoch * sampler.n_pairs : (epoch + 1) * sampler.n_pairs], axis=1)
                assert Counter(map(tuple, pairs.tolist())) == Counter(expected)
            assert sampler.n_pairs == len(expected)

    def test_beside_each_positive_pair_stands_a_negative_one_all_equally_likely(self) -> None:
        labels = [0, 0, 0, 1, 1, 2]
        sampler = PairBatches(labels, 128)
        draws = np.concatenate([sampler.batch(t).reshape(-1, 2, 2)[:, 1] for t in range(700)])
        counts = Counter(map(tuple, draws.tolist()))
        negatives = {(i, j) for i in range(6) for j in range(6) if labels[i] != labels[j]}
        assert set(counts) == negatives
        expected = len(draws) / len(negatives)
        assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())

    def test_layout_is_the_contrastive_loss_s(self) -> None:
        rows = PairBatches(Y, 16).batch(0)
        same = Y[rows].reshape(-1, 2)
        assert (same[0::2, 0] == same[0::2, 1]).all()
        assert (same[1::2, 0] != same[1::2, 1]).all()
        assert contrastive_loss(torch.zeros(16, 2), Y[rows]) == 0.25

    def test_hundreds_of_millions_of_pairs_need_no_list(self) -> None:
        labels = np.repeat(np.arange(50), 5000)
        sampler = PairBatches(labels)
        assert sampler.n_pairs == 50 * 5000 * 4999 // 2
        rows = sampler.batch(sampler.steps_per_epoch - 1).reshape(-1, 2, 2)[:, 0]
        assert (labels[rows[:, 0]] == labels[rows[:, 1]]).all()
        assert (rows[:, 0] < rows[:, 1]).all()

    def test_pair_numbers_are_right_where_a_root_in_floats_is_not(self) -> None:
        assert list(zip(*(part.tolist() for part in triangle(np.arange(6))), strict=True)) == [
            *((0, 0), (0, 1), (1, 1)),
            *((0, 2), (1, 2), (2, 2)),
        ]
        for b in (2**26 + 1, 2**28 - 1, 2**30, 2**31 - 3):
            first = b * (b + 1) // 2
            a, found = triangle(np.array([first - 1, first, first + 1, first + b]))
            assert a.tolist() == [b - 1, 0, 1, b]
            assert found.tolist() == [b - 1, b, b, b]

    def test_bad_input(self) -> None:
        with pytest.raises(ValueError, match=r"batch_size must be a multiple of 4 .*, got 30\. Pass 32\."):
            PairBatches(Y, 30)
        with pytest.raises(ValueError, match="at least two classes, got one class"):
            PairBatches([1, 1, 1], 4)
        with pytest.raises(ValueError, match="a class with at least two images, got 3 classes of one image each"):
            PairBatches([1, 2, 3], 4)
        with pytest.raises(ValueError, match=r"labels must have shape \(n,\) with n >= 1, got \(0,\)"):
            PairBatches([], 4)
        with pytest.raises(ValueError, match="labels must be integers or strings, got float64"):
            PairBatches(np.ones(4), 4)


class TestTriplets:
    def test_layout_and_epoch(self) -> None:
        sampler = TripletBatches(Y, 24, seed=1)
        stream = np.concatenate([sampler.batch(t) for t in range(2 * sampler.steps_per_epoch)]).reshape(-1, 3)
        a, p, n = stream.T
        assert (Y[a] == Y[p]).all()
        assert (a != p).all()
        assert (Y[a] != Y[n]).all()
        sizes = np.bincount(Y)
        anchors = np.flatnonzero(sizes[Y] > 1)
        assert sorted(a[: len(anchors)]) == anchors.tolist()
        assert sorted(a[len(anchors) : 2 * len(anchors)]) == anchors.tolist()
        assert triplet_loss(torch.zeros(24, 2), Y[sampler.batch(0)]) == 0.5

    def test_mates_and_negatives_are_equally_likely(self) -> None:
        labels = np.array([0, 1, 1, 0, 1, 0, 1, 2])
        sampler = TripletBatches(labels, 21)
        stream = np.concatenate([sampler.batch(t) for t in range(2000)]).reshape(-1, 3)
        mine = stream[stream[:, 0] == 4]
        for column, expected in ((1, {1, 2, 6}), (2, {0, 3, 5, 7})):
            counts = Counter(mine[:, column].tolist())
            assert set(counts) == expected
            share = len(mine) / len(expected)
            assert all(abs(count - share) < 5 * share**0.5 for count in counts.values())

    def test_bad_input(self) -> None:
        with pytest.raises(ValueError, match=r"multiple of 3 .*, got 128\. Pass 129\."):
            TripletBatches(Y, 128)
        with pytest.raises(ValueError, match="at least two classes"):
            TripletBatches([1, 1, 1], 3)


class TestBalanced:
    def test_classes_times_images(self) -> None:
        sampler = BalancedBatches(Y, 8, 3, seed=1)
        sizes = np.bincount(Y)
        assert sampler.single_image_classes == (sizes == 1).sum()
        for epoch in range(3):
            seen: list[int] = []
            for t in range(sampler.steps_per_epoch):
                rows = sampler.batch(epoch * sampler.steps_per_epoch + t).reshape(8, 3)
                assert (Y[rows] == Y[rows[:, :1]]).all()
                for row in rows:
                    size = sizes[Y[row[0]]]
                    assert len(set(row)) == min(3, size)
                    assert size > 1
                seen += Y[rows[:, 0]].tolist()
            assert len(set(seen)) == len(seen)

    def test_bad_input(self) -> None:
        with pytest.raises(ValueError, match=r"classes must be at most .* 2 here, got 3\. Pass classes=2"):
            BalancedBatches([0, 0, 1, 1, 2], 3, 2)
        with pytest.raises(ValueError, match="images must be a whole number >= 2, got 1"):
            BalancedBatches(Y, 2, 1)


class TestMined:
    def test_pairs_then_the_difficult_of_each_side(self) -> None:
        table = neighbours()
        sampler = MinedBatches(Y, table, 16, mined=0.5, seed=1)
        for t in range(50):
            rows = sampler.batch(t)
            assert len(set(rows.tolist())) == 16
            pairs, mined = rows[:8].reshape(4, 2), rows[8:]
            assert (Y[pairs[:, 0]] == Y[pairs[:, 1]]).all()
            expected: list[int] = []
            for rank in range(table.shape[1]):
                for side in rows[:8]:
                    k = int(table[side, rank])
                    if k >= 0 and k not in expected and k not in rows[:8]:
                        expected.append(k)
            assert mined.tolist() == expected[:8]

    def test_the_share_is_a_setting(self) -> None:
        for mined, pairs in ((0.0, 16), (0.25, 12), (0.5, 8), (0.9, 1)):
            sampler = MinedBatches(Y, neighbours(), 32, mined=mined)
            assert sampler.n_batch_pairs == pairs
            rows = sampler.batch(0)[: 2 * pairs].reshape(-1, 2)
            assert (Y[rows[:, 0]] == Y[rows[:, 1]]).all()

    def test_neighbours_can_be_replaced_and_may_run_out(self) -> None:
        sampler = MinedBatches(Y, neighbours(1), 32)
        before = sampler.batch(0)
        sampler.set_difficult(np.full((N, 2), -1))
        after = sampler.batch(0)
        np.testing.assert_array_equal(before[:16], after[:16])
        assert not np.array_equal(before, after)
        assert len(set(after.tolist())) == 32

    def test_few_pairs_are_no_reason_to_stop(self) -> None:
        labels = [0, 0, 0, 1, 2, 3, 4, 5]
        rows = MinedBatches(labels, np.full((8, 1), -1), 8, mined=0.0).batch(0)
        assert sorted(rows.tolist()) == list(range(8))

    def test_bad_input(self) -> None:
        table = neighbours()
        with pytest.raises(
            ValueError, match=rf"difficult must be an integer array of shape \({N}, h\), got int64 of shape \(3, 6\)"
        ):
            MinedBatches(Y, table[:3], 32)
        with pytest.raises(ValueError, match="got float64 of shape"):
            MinedBatches(Y, table.astype(float), 32)
        wrong = table.copy()
        wrong[7, 2] = 7
        with pytest.raises(ValueError, match=r"must hold images of other classes .* in row 7\. Leave out"):
            MinedBatches(Y, wrong, 32)
        wrong[7, 2] = N
        with pytest.raises(ValueError, match="in row 7"):
            MinedBatches(Y, wrong, 32)
        with pytest.raises(ValueError, match=f"at most the number of images, {N} here, got {N + 1}"):
            MinedBatches(Y, table, N + 1)
        for mined in (1.0, -0.1, 1.5, "0.5"):
            with pytest.raises(
                ValueError, match="mined must be a number from 0 to 1 that leaves room for a pair in a batch of 32"
            ):
                MinedBatches(Y, table, 32, mined=mined)  # type: ignore[arg-type]

    @pytest.mark.parametrize("m", [2, 3, 7, 31])
    def test_odd_batches(self, m: int) -> None:
        for mined in (0.0, 0.3):
            if int(m * (1 - mined)) >= 2:
                assert len(set(MinedBatches(Y, neighbours(), m, mined=mined).batch(0).tolist())) == m


@given(st.integers(1, 20_000), st.integers(0, 2**32), st.integers(0, 1000))
@settings(deadline=None, max_examples=50)
def test_shuffled_is_a_permutation(n: int, seed: int, epoch: int) -> None:
    assert sorted(shuffled(np.arange(n), n, (seed, epoch)).tolist()) == list(range(n))


def test_shuffled_looks_random() -> None:
    n = 100_000
    first, second = (shuffled(np.arange(n), n, (0, epoch)) for epoch in range(2))
    for order in (first, second):
        assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < 0.02
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.02
        assert (order == np.arange(n)).sum() < 10  # 1 is expected
        spread = np.histogram(order[:10_000], bins=20, range=(0, n))[0]
        assert (abs(spread - 500) < 5 * 500**0.5).all()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02
