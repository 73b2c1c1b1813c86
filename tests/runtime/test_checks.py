import math
from typing import Any

import numpy as np
import pytest
import torch

from liftedstruct import contrastive_loss, inspect_batch, lifted_struct_loss, structured_hinge_loss, triplet_loss
from liftedstruct.losses import LOSSES
from liftedstruct.runtime.checks import as_classes, as_number, as_plain, check_count, pick

ALL = [contrastive_loss, lifted_struct_loss, inspect_batch, structured_hinge_loss, triplet_loss]
X = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 0, 1, 1, 1, 0])
NAN = X.clone()
NAN[4, 1] = torch.nan
NAN[5] = torch.inf
INFINITE = X.clone()
INFINITE[2, 0] = -torch.inf


@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize(
    ("embeddings", "labels", "text"),
    [
        (X, Y[:5], r"labels must have shape \(m,\), one label per row of the embeddings: got \(5,\) for 6 rows\. Pass as many"),
        (X, Y[:, None], r"labels must have shape \(m,\).*got \(6, 1\) for 6 rows"),
        (X[:, 0], Y, r"embeddings must have shape \(m, d\) with m, d >= 1, got \(6,\)\. Pass one row per image\."),
        (X[None], Y, r"embeddings must have shape \(m, d\) with m, d >= 1, got \(1, 6, 2\)"),
        (X[:0], Y[:0], r"embeddings must have shape .* got \(0, 2\)"),
        (X.long(), Y, r"embeddings must be of a float type, got int64\. Convert them with \.float\(\)\."),
        (X.numpy().astype(int), Y, r"embeddings must be of a float type, got int64"),
        (NAN, Y, r"embeddings must be finite, but row 4 holds nan \(first of 2 such rows\)\. Lower the learning rate"),
        (INFINITE.half(), Y, r"embeddings must be finite, but row 2 holds -inf \(first of 1 such rows\)"),
        (
            X * 1e30,
            Y,
            r"embeddings must have squares that fit float32, got values up to .*e\+30\. Scale them down, or pass float64",
        ),
        (X, Y.float(), r"labels must be integers or strings, got float32\. Convert whole numbers with \.long\(\)\."),
        (
            X,
            Y.numpy().astype(float),
            r"labels must be integers or strings, got float64\. Convert whole numbers to an integer type\.",
        ),
        (X, [0.0, 0.0, 1.0, 1.0, 1.0, 0.0], r"labels must be all integers or all strings, got float"),
        (X, [1, "1", 1, "1", 1, "1"], r"labels must be all integers or all strings, got int and str"),
        (X, [True, True, 0, 0, 0, 1], r"labels must be all integers or all strings, got bool and int"),
        (X, [[0], [0, 1], [1], [1], [1], [0]], r"labels must be all integers or all strings, got list"),
        (X, np.array([b"a", b"a", b"b", b"b", b"b", b"a"]), r"labels must be integers or strings, got \|S1"),
        (X.numpy().astype(np.longdouble), Y, r"embeddings must be of a float type, got (longdouble|float128)"),
        (X.numpy().astype(complex), Y, r"embeddings must be of a float type, got complex128"),
        (X, [0, 0, None, 1, 1, 0], r"labels must be all integers or all strings, got NoneType\. Convert"),
        (X, np.array([0, 0, "a", 1, 1, 0], dtype=object), r"labels must be all integers or all strings, got int and str"),
    ],
)
def test_bad_input(function, embeddings, labels, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=text) as caught:
        function(embeddings, labels)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("margin", [-1.0, float("nan"), float("inf"), "1", True, None])
def test_bad_margin(function, margin) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"margin must be a finite number >= 0, got .*\. The paper uses 1\.0\."):
        function(X, Y, margin)


@pytest.mark.parametrize("name", LOSSES)
def test_modules_check_their_settings_on_creation(name: str) -> None:
    with pytest.raises(ValueError, match="margin must be"):
        LOSSES[name](margin=-1)


@pytest.mark.parametrize("max_bytes", [0, -5, 1.5, True])
@pytest.mark.parametrize("function", [lifted_struct_loss, structured_hinge_loss])
def test_bad_budget(function, max_bytes) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="max_bytes must be a whole number >= 1, got"):
        function(X, Y, max_bytes=max_bytes)


def test_pick_suggests_the_closest_name() -> None:
    names = "contrastive, lifted_struct, structured_hinge, triplet"
    with pytest.raises(ValueError, match=rf"loss must be one of {names}, got 'lifted'\. Did you mean 'lifted_struct'\?"):
        pick(LOSSES, "lifted", "loss")
    with pytest.raises(ValueError, match=r"got 'zzz'\. Pass one of these names\."):
        pick(LOSSES, "zzz", "loss")
    assert pick(LOSSES, "triplet", "loss") is LOSSES["triplet"]


def test_arrays_of_any_layout() -> None:
    expected = lifted_struct_loss(X.double(), Y)
    whole = X.double().numpy()
    frozen = whole.copy()
    frozen.flags.writeable = False
    wide = np.empty((6, 4))
    wide[:, ::2] = whole
    for same in (whole[::-1].copy()[::-1], whole.astype(">f8"), frozen, wide[:, ::2], np.asfortranarray(whole)):
        torch.testing.assert_close(lifted_struct_loss(same, Y), expected)
    for margin in (np.float32(1), np.int64(1), 1):
        assert lifted_struct_loss(X.double(), Y, margin) == expected  # type: ignore[arg-type]


def test_classes_are_exact_beyond_floats_and_64_bits() -> None:
    for labels in (
        [2**53, 2**53 + 1],
        [1, 2**63],
        [2**64, 2**64 + 1],
        ["a", "a "],
        np.array([2**63, 2**63 + 1], dtype=np.uint64),
    ):
        classes, names = as_classes(labels)
        assert classes.tolist() == [0, 1]
        assert len(names) == 2


@pytest.mark.parametrize("function", ALL)
def test_booleans_are_two_classes(function) -> None:  # type: ignore[no-untyped-def]
    expected = str(function(X, Y))
    for labels in (Y.bool(), Y.bool().numpy(), Y.bool().tolist(), Y.bool().numpy().astype(object)):
        assert str(function(X, labels)) == expected
        assert as_classes(labels)[1].tolist() == [False, True]


def test_numpy_scalars_are_numbers() -> None:
    whole: tuple[Any, ...] = (np.int8(2), np.uint64(2), np.array(2))
    for count in whole:
        assert type(as_plain(count)) is type(check_count("n", count)) is int
    for value in (np.float16(2), np.float64(2), np.array(2.0), np.int64(2), 2, 2.0):
        assert type(as_number(value)) is float
        assert as_number(value) == 2
    assert as_number(10**400) == -as_number(-(10**400)) == math.inf
    for other in (True, np.True_, "2", np.str_("2"), None, 2j, np.complex64(2), np.ones(1), torch.tensor(2.0)):
        assert math.isnan(as_number(other))
    others: tuple[Any, ...] = (True, np.True_, 2.0, np.float64(2), "2", np.ones(1, int))
    for count in others:
        with pytest.raises(ValueError, match="n must be a whole number >= 1, got"):
            check_count("n", count)
    text, flag = as_plain(np.str_("a")), as_plain(np.True_)
    assert (type(text), text, type(flag), flag) == (str, "a", bool, True)
