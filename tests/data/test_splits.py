import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from liftedstruct.data.class_names import draw, group_by_name


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
@given(st.lists(st.sampled_from(["a", "A", " a", "b", "B", "c", "d"]), min_size=2, max_size=20), st.data())
def test_a_draw_separates_no_names_that_are_alike(names: list[str], data: st.DataObject) -> None:
    groups = group_by_name(range(len(names)), names)
    drawn = draw(groups, data.draw(st.integers(1, len(groups))), np.random.default_rng(0))
    keys = {names[c].strip().lower() for c in drawn}
    assert drawn.tolist() == [c for c, name in enumerate(names) if name.strip().lower() in keys]


def test_other_names_are_drawn_as_ever() -> None:
    pool = np.arange(0, 100, 3)
    for n in (1, 7, 33):
        expected = np.sort(np.random.default_rng([5, 2]).choice(pool, n, replace=False))
        found = draw(group_by_name(pool, [f"class {i}" for i in range(100)]), n, np.random.default_rng([5, 2]))
        assert found.tolist() == expected.tolist()
        assert found.dtype == np.int64
