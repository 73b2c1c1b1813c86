from typing import Annotated, Any, Literal

import numpy as np
import pytest

from liftedstruct.runtime.settings import Choice, Count, Fraction, Positive, Range, check_value, choose, describe, options_of


def plain(scale: float = 1.0, *, name_of: Literal["a", "b"] = "a", count: Count = 3) -> tuple[Any, ...]:
    """Return the options.

    Args:
        scale: a description that
            continues on the next line.
        name_of: which one.
        count: how many.

    """
    return scale, name_of, count


REGISTRY: dict[str, Any] = {"plain": plain, "other": lambda: "other"}


def test_options_are_the_parameters_with_defaults() -> None:
    found = {option.name: (option.default, option.help) for option in options_of(plain)}
    assert found == {
        "scale": (1.0, "a description that continues on the next line."),
        "name_of": ("a", "which one."),
        "count": (3, "how many."),
    }
    assert describe(plain, "nothing") == ""


def test_a_choice_has_all_options() -> None:
    choice = choose("thing", REGISTRY, {"name": "plain", "count": np.int64(5)})
    assert choice.plain() == {"name": "plain", "scale": 1.0, "name_of": "a", "count": 5}
    assert choice.make() == (1.0, "a", 5)
    assert choice == choose("thing", REGISTRY, choice.plain()) == choose("thing", REGISTRY, choice)
    assert choose("thing", REGISTRY, {"scale": 2}, choice).options == {"scale": 2.0, "name_of": "a", "count": 5}
    assert choose("thing", REGISTRY, "plain", choice) == choice
    assert choose("thing", REGISTRY, "other", choice).options == {}
    assert str(choice) == "plain (scale 1.0, name_of a, count 5)"
    assert isinstance(choice, Choice)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("plai", r"thing must be one of other, plain, got 'plai'\. Did you mean 'plain'\?"),
        (3, r"thing must be a name or a mapping"),
        ({"scale": 1.0}, r"thing must be one of other, plain, got None"),
        ({"name": "plain", "scal": 1.0}, r"got 'scal'\. Did you mean 'scale'\?"),
        ({"name": "other", "scale": 1.0}, r"thing other must be given known settings, got 'scale'\. Its settings are: none"),
        ({"name": "plain", "count": 0}, r"thing\.count must be a whole number >= 1, got 0\. thing\.count: how many\."),
        ({"name": "plain", "name_of": "c"}, r"thing\.name_of must be 'a' or 'b', got 'c'"),
    ],
)
def test_bad_choices(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose("thing", REGISTRY, value)


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (int, [3, np.int8(3)], [3.0, "3", True, None]),
        (float, [3, 0.5, "1e-4", np.float32(2)], ["fast", True, [1.0]]),
        (bool, [True, np.False_], [1, "yes"]),
        (str | None, [None, "x"], [3]),
        (Positive, [1e-9], [0, -1, float("nan"), float("inf")]),
        (Fraction | None, [None, 0, 0.99], [1, -0.1]),
        (Count | Literal["all"], [1, "all"], [0, "some", 1.5]),
        (Annotated[float, Range(0, 1)], [0, 1], [1.01]),
        (Any, [object], []),
    ],
)
def test_values_are_checked_by_their_annotation(annotation: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        check_value("it", value, annotation)
    for value in bad:
        with pytest.raises(ValueError, match=r"^it must be ") as caught:
            check_value("it", value, annotation)
        assert "\n" not in str(caught.value)
    assert type(check_value("it", np.float64(1), float)) is float
