import inspect
import json
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from liftedstruct import contrastive_loss, samplers, triplet_loss
from liftedstruct.samplers import (
    SAMPLERS,
    BalancedSampler,
    HardNegativeSampler,
    PairSampler,
    Sampler,
    TripletSampler,
    shuffled,
    triangle,
)

Y = np.repeat(np.arange(30), np.arange(1, 31) % 7 + 1)  # classes of 1 to 7 images
Y = np.random.default_rng(0).permutation(Y)
N = len(Y)


def neighbors(h: int = 6) -> np.ndarray:
    """Return for each image the images of other classes with the nearest indices."""
    table = np.full((N, h), -1)
    for i in range(N):
        others = [k for k in sorted(range(N), key=lambda k: (abs(k - i), k)) if Y[k] != Y[i]][:h]
        table[i, : len(others)] = others
    return table


def make(name: str) -> Sampler:
    if name == "balanced":
        return BalancedSampler(Y, 24, samples_per_class=3, seed=5)
    if name != "hard_negatives":
        return SAMPLERS[name](Y, 32, seed=5)
    sampler = HardNegativeSampler(Y, 32, seed=5)
    sampler.set_hard_negatives(neighbors())
    return sampler


def listed(sampler: Sampler) -> list[list[int]]:
    """Return the batches of an epoch."""
    return [batch.tolist() for batch in sampler]


class Numbers(Dataset[int]):
    """Dataset whose images are their own indices."""

    def __getitem__(self, i: int) -> int:
        return i


def test_every_kind_is_made_here() -> None:
    assert {name: type(make(name)) for name in SAMPLERS} == SAMPLERS


@pytest.mark.parametrize("name", SAMPLERS)
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
        _ = next(iter(sampler))  # stopped early
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
        restored.load_state_dict(make(name).state_dict(step=n))  # at the end of an epoch: the next one is not empty
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
        for key, value in (("seed", 6), ("batch_size", 8), ("sampler", "OtherSampler"), ("labels", "3 images")):
            with pytest.raises(ValueError, match=f"{key} must be .*, got {value!r}"):
                make(name).load_state_dict({**state, key: value})

    def test_settings_are_keywords_with_a_line_of_help(self, name: str) -> None:
        """The command line needs a type, a default and a line in the docstring for each setting."""
        parameters = list(inspect.signature(SAMPLERS[name]).parameters.values())
        assert [each.name for each in parameters[:2]] == ["labels", "batch_size"]
        for each in parameters[2:]:
            assert each.kind is each.KEYWORD_ONLY
        for each in parameters[1:]:
            assert each.default is not each.empty
            assert each.annotation in (int, float, bool)
            assert f"        {each.name}: " in (SAMPLERS[name].__doc__ or "")

    def test_batch_size_is_an_upper_bound(self, name: str) -> None:
        for wanted in (12, 13, 25, 50, 10_000):
            sampler = SAMPLERS[name](Y, wanted)
            assert len(sampler.batch(0)) == sampler.batch_size <= min(wanted, N)
            assert sampler.batch_size > min(wanted, N) - 4 or name == "balanced"
        least = {"balanced": 8, "hard_negatives": 4, "pairs": 4, "triplets": 3}[name]
        assert SAMPLERS[name](Y, least).batch_size == least
        with pytest.raises(ValueError, match="batch"):
            SAMPLERS[name](Y, least - 1)

    def test_arrays_can_be_saved_without_knowing_the_sampler(self, name: str) -> None:
        sampler, other = make(name), SAMPLERS[name](Y, make(name).batch_size, seed=5)
        other.load_arrays(sampler.arrays())
        assert other.batch(3).tolist() == SAMPLERS[name].batch(other, 3).tolist()
        if name != "balanced":
            assert other.batch(3).tolist() == sampler.batch(3).tolist()

    def test_only_hard_negatives_are_refreshed(self, name: str) -> None:
        sampler = make(name)
        assert (sampler.refresh_every is not None) == (name == "hard_negatives")
        before = sampler.batch(0).tolist()
        sampler.refresh(np.random.default_rng(0).normal(size=(N, 3)))
        assert (sampler.batch(0).tolist() == before) == (name != "hard_negatives")

    def test_bad_labels(self, name: str) -> None:
        with pytest.raises(ValueError, match="at least two classes, got one class"):
            SAMPLERS[name]([1, 1, 1], 12)
        with pytest.raises(ValueError, match="a class with at least two images, got 3 classes with one image each"):
            SAMPLERS[name]([1, 2, 3], 12)
        with pytest.raises(ValueError, match=r"labels must have shape \(n,\) with n >= 1, got \(0,\)"):
            SAMPLERS[name]([], 12)
        with pytest.raises(ValueError, match="labels must be integers or strings, got float64"):
            SAMPLERS[name](np.ones(4), 12)
        with pytest.raises(ValueError, match="seed must be a whole number"):
            SAMPLERS[name](Y, 12, seed=-1)


class TestPairs:
    def test_an_epoch_is_every_positive_pair_once(self) -> None:
        for self_pairs in (False, True):
            sampler = PairSampler(Y, 20, seed=3, self_pairs=self_pairs)
            expected = {(i, j) for i in range(N) for j in range(i if self_pairs else i + 1, N) if Y[i] == Y[j]}
            stream = np.concatenate([sampler.batch(t).reshape(-1, 2, 2)[:, 0] for t in range(2 * sampler.steps_per_epoch)])
            for epoch in range(2):
                pairs = np.sort(stream[epoch * sampler.n_pairs : (epoch + 1) * sampler.n_pairs], axis=1)
                assert Counter(map(tuple, pairs.tolist())) == Counter(expected)
            assert sampler.n_pairs == len(expected)

    def test_beside_each_positive_pair_stands_a_negative_one_all_equally_likely(self) -> None:
        labels = [0, 0, 0, 1, 1, 2]
        sampler = PairSampler(labels, 128)
        draws = np.concatenate([sampler.batch(t).reshape(-1, 2, 2)[:, 1] for t in range(10_000)])
        counts = Counter(map(tuple, draws.tolist()))
        negatives = {(i, j) for i in range(6) for j in range(6) if labels[i] != labels[j]}
        assert set(counts) == negatives
        expected = len(draws) / len(negatives)
        assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())

    def test_layout_is_the_contrastive_loss_s(self) -> None:
        rows = PairSampler(Y, 16).batch(0)
        same = Y[rows].reshape(-1, 2)
        assert (same[0::2, 0] == same[0::2, 1]).all()
        assert (same[1::2, 0] != same[1::2, 1]).all()
        assert contrastive_loss(torch.zeros(16, 2), Y[rows], pairs="rows") == 0.25

    def test_hundreds_of_millions_of_pairs_need_no_list(self) -> None:
        labels = np.repeat(np.arange(50), 5000)
        sampler = PairSampler(labels)
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

    def test_self_pairs_need_no_class_of_two(self) -> None:
        assert PairSampler([1, 2, 3], 4, self_pairs=True).n_pairs == 3


class TestTriplets:
    def test_layout_and_epoch(self) -> None:
        sampler = TripletSampler(Y, 24, seed=1)
        stream = np.concatenate([sampler.batch(t) for t in range(2 * sampler.steps_per_epoch)]).reshape(-1, 3)
        a, p, n = stream.T
        assert (Y[a] == Y[p]).all()
        assert (a != p).all()
        assert (Y[a] != Y[n]).all()
        sizes = np.bincount(Y)
        anchors = np.flatnonzero(sizes[Y] > 1)
        assert sorted(a[: len(anchors)]) == anchors.tolist()
        assert sorted(a[len(anchors) : 2 * len(anchors)]) == anchors.tolist()
        assert triplet_loss(torch.zeros(24, 2), Y[sampler.batch(0)], triplets="rows") == 0.5

    def test_mates_and_negatives_are_equally_likely(self) -> None:
        labels = np.array([0, 1, 1, 0, 1, 0, 1, 2])
        sampler = TripletSampler(labels, 21)
        stream = np.concatenate([sampler.batch(t) for t in range(7000)]).reshape(-1, 3)
        mine = stream[stream[:, 0] == 4]
        for column, expected in ((1, {1, 2, 6}), (2, {0, 3, 5, 7})):
            counts = Counter(mine[:, column].tolist())
            assert set(counts) == expected
            share = len(mine) / len(expected)
            assert all(abs(count - share) < 5 * share**0.5 for count in counts.values())


class TestBalanced:
    def test_classes_times_images(self) -> None:
        sampler = BalancedSampler(Y, 24, samples_per_class=3, seed=1)
        sizes = np.bincount(Y)
        assert (sampler.classes_per_batch, sampler.samples_per_class) == (8, 3)
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

    @pytest.mark.parametrize(
        ("sizes", "batch_size", "samples", "expected"),
        [
            ([4] * 100, 64, 4, (16, 4)),
            ([4] * 100, 66, 4, (16, 4)),
            ([4] * 9 + [3], 64, 4, (9, 4)),  # all 10 classes would need 40 images, there are 39
            ([20] * 5, 64, 4, (5, 12)),  # few classes: more images per class
            ([6] * 5 + [1] * 9, 64, 4, (5, 6)),  # but no more than the class size
            ([2] * 5, 64, 4, (2, 4)),
            ([2] * 2, 64, 4, (2, 4)),
            ([50, 50, 1], 9, 4, (2, 4)),
        ],
    )
    def test_what_fits(self, sizes: list[int], batch_size: int, samples: int, expected: tuple[int, int]) -> None:
        sampler = BalancedSampler(np.repeat(np.arange(len(sizes)), sizes), batch_size, samples_per_class=samples)
        assert (sampler.classes_per_batch, sampler.samples_per_class) == expected
        assert sampler.batch_size == expected[0] * expected[1] == len(sampler.batch(0))

    def test_bad_input(self) -> None:
        with pytest.raises(ValueError, match="samples_per_class=4 images each, got 7"):
            BalancedSampler(Y, 7)
        with pytest.raises(ValueError, match="two classes with two images or more, got one"):
            BalancedSampler([0, 0, 1], 8)
        with pytest.raises(ValueError, match="samples_per_class must be a whole number >= 2, got 1"):
            BalancedSampler(Y, 8, samples_per_class=1)


class TestHardNegatives:
    def test_pairs_then_the_hard_negatives_of_each_side(self) -> None:
        table = neighbors()
        sampler = HardNegativeSampler(Y, 16, hard_fraction=0.5, seed=1)
        sampler.set_hard_negatives(table)
        for t in range(50):
            rows = sampler.batch(t)
            assert len(set(rows.tolist())) == 16
            pairs, hard = rows[:8].reshape(4, 2), rows[8:]
            assert (Y[pairs[:, 0]] == Y[pairs[:, 1]]).all()
            expected: list[int] = []
            for rank in range(table.shape[1]):
                for side in rows[:8]:
                    k = int(table[side, rank])
                    if k >= 0 and k not in expected and k not in rows[:8]:
                        expected.append(k)
            assert hard.tolist() == expected[:8]

    @pytest.mark.parametrize("large", [0, 5, 100])
    @pytest.mark.parametrize("n_hard", [1, 4, 80])
    def test_refresh_finds_the_nearest_of_other_classes(self, large: int, n_hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(samplers, "LARGE", large)
        monkeypatch.setattr(samplers, "QUERIES", 5)
        X = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
        X[: N // 2] = X[N // 2 : 2 * (N // 2)]  # ties
        sampler = HardNegativeSampler(Y, 12, n_hard=n_hard)
        for embeddings in (X, torch.from_numpy(X).requires_grad_()):
            sampler.refresh(embeddings)
            for i, found in enumerate(sampler.hard_negatives.tolist()):
                others = sorted((float(((X[i].astype(float) - X[j]) ** 2).sum()), j) for j in range(N) if Y[j] != Y[i])
                near = [j for _, j in others[:n_hard]]
                assert found == near + [-1] * (n_hard - len(near))
        with pytest.raises(ValueError, match=f"each of the {N} labels, got 3 rows"):
            sampler.refresh(X[:3])

    @pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc")
    def test_refresh_of_a_large_class_takes_little_memory(self) -> None:
        code = """
import re
from pathlib import Path
import numpy as np
from liftedstruct.samplers import HardNegativeSampler
def status(field): return 1024 * int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
y = np.minimum(np.arange(6000), 3000)  # 3,000 classes of one image, and one of 3,000
X = np.random.default_rng(0).normal(size=(6000, 8)).astype(np.float32)
HardNegativeSampler(y[2500:3500]).refresh(X[2500:3500])
before = status("VmRSS")
HardNegativeSampler(y).refresh(X)
print(status("VmHWM") - before)
"""
        extra = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        assert extra < 6000 * 3000 * 8 / 2  # half of the size of 3,000 neighbor indices per image

    def test_the_fraction_is_a_setting(self) -> None:
        for fraction, pairs in ((0.0, 16), (0.25, 12), (0.5, 8), (0.9, 1)):
            sampler = HardNegativeSampler(Y, 32, hard_fraction=fraction)
            assert sampler.n_batch_pairs == pairs
            rows = sampler.batch(0)[: 2 * pairs].reshape(-1, 2)
            assert (Y[rows[:, 0]] == Y[rows[:, 1]]).all()

    def test_hard_negatives_may_run_out(self) -> None:
        sampler = HardNegativeSampler(Y, 32)
        without = sampler.batch(0)
        sampler.set_hard_negatives(neighbors(1))
        few = sampler.batch(0)
        np.testing.assert_array_equal(few[:16], without[:16])
        assert not np.array_equal(few, without)
        assert len(set(few.tolist())) == len(set(without.tolist())) == 32

    def test_few_pairs_are_no_reason_to_stop(self) -> None:
        labels = [0, 0, 0, 1, 2, 3, 4, 5]
        rows = HardNegativeSampler(labels, 8, hard_fraction=0.0).batch(0)
        assert sorted(rows.tolist()) == list(range(8))

    def test_bad_input(self) -> None:
        table = neighbors()
        sampler = HardNegativeSampler(Y, 32)
        with pytest.raises(ValueError, match=rf"integer array of shape \({N}, h\), got int64 of shape \(3, 6\)"):
            sampler.set_hard_negatives(table[:3])
        with pytest.raises(ValueError, match="got float64 of shape"):
            sampler.set_hard_negatives(table.astype(float))
        wrong = table.copy()
        for image in (7, N, -2):
            wrong[7, 2] = image
            with pytest.raises(ValueError, match="in row 7"):
                sampler.set_hard_negatives(wrong)
        for fraction in (1.0, -0.1, 1.5, "0.5"):
            with pytest.raises(ValueError, match="hard_fraction must be a number from 0 to 1"):
                HardNegativeSampler(Y, 32, hard_fraction=fraction)  # type: ignore[arg-type]

    @pytest.mark.parametrize("m", [2, 3, 7, 31])
    def test_odd_batches(self, m: int) -> None:
        for fraction in (0.0, 0.3):
            if int(m * (1 - fraction)) >= 2:
                assert len(set(HardNegativeSampler(Y, m, hard_fraction=fraction).batch(0).tolist())) == m


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
