import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftedstruct.data.splits import group_by_name, hold_out


@pytest.mark.parametrize(
    "other",
    [
        "red café",
        "RED CAFÉ",
        " Red\tCafé ",
        "Red  Café",
        "Red\u00a0Café",
        unicodedata.normalize("NFD", "Red Café"),
        "Ｒed Café",
    ],
)
def test_names_that_are_alike(other: str) -> None:
    assert group_by_name(range(3), ["Red Café", "sofa", other]) == [[0, 2], [1]]


@pytest.mark.parametrize("other", ["Red Cafe", "RedCafé", "Red_Café", "Red Café 2", "Red/Café"])
def test_names_that_are_not(other: str) -> None:
    assert group_by_name(range(2), ["Red Café", other]) == [[0], [1]]


def test_names_that_are_no_text() -> None:
    assert group_by_name(range(3), ["\udcff", "\udcfe", "a\n"]) == [[0], [1], [2]]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "A", " a", "b", "B", "c", "d"]), min_size=2, max_size=20), st.floats(0.01, 0.99))
def test_names_that_are_alike_are_held_out_together(names: list[str], fraction: float) -> None:
    keys = {name.strip().lower() for name in names}
    if len(keys) < 2:
        return
    drawn = hold_out(range(len(names)), names, fraction, seed=[0])
    held = {names[c].strip().lower() for c in drawn}
    assert drawn.tolist() == [c for c, name in enumerate(names) if name.strip().lower() in held]
    assert len(held) == min(len(keys) - 1, max(1, round(fraction * len(keys))))


def test_the_draw_is_that_of_the_generator() -> None:
    pool, names = np.arange(0, 100, 3), [f"class {i}" for i in range(100)]
    for fraction in (0.03, 0.2, 0.97):
        expected = np.random.default_rng([5, 2]).choice(pool, round(fraction * 34), replace=False)
        found = hold_out(pool, names, fraction, seed=[5, 2])
        assert found.tolist() == sorted(expected)
        assert found.dtype == np.int64


def test_classes_that_are_left() -> None:
    assert len(hold_out(range(5), "abcde", 0.99, seed=[0])) == 4
    assert len(hold_out(range(5), "abcde", 0.99, seed=[0], keep=2)) == 3
    with pytest.raises(ValueError, match=r"at least 3 whose names differ .* got 2\."):
        hold_out(range(3), "aAb", 0.5, seed=[0], keep=2)
    for fraction in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="must be between 0 and 1, got"):
            hold_out(range(5), "abcde", fraction, seed=[0])
