from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from liftedstruct.data import FolderSource, ImageSet

ROOT = Path("data")


def numbers(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def image_set(classes: int, images: int = 2, test: NDArray[np.int64] | None = None) -> ImageSet:
    return ImageSet(
        "folder",
        ROOT,
        FolderSource(ROOT),
        tuple(f"{i}.png" for i in range(classes * images)),
        np.repeat(np.arange(classes), images),
        tuple(f"class {i}" for i in range(classes)),
        numbers(classes - 1) if test is None else test,
    )


def test_parts() -> None:
    images = image_set(4, test=numbers(1, 3))
    assert len(images) == 8
    assert images.train.tolist() == [0, 1, 4, 5]
    assert images.test.tolist() == [2, 3, 6, 7]
    assert images.validation.tolist() == []
    assert images.train_classes.tolist() == [0, 2]
    held_out = images.with_validation(0.5)
    assert len(held_out.validation_classes) == len(held_out.train_classes) == 1
    assert held_out.test.tolist() == images.test.tolist()
    assert sorted([*held_out.train, *held_out.validation]) == images.train.tolist()


def test_subset() -> None:
    images = image_set(4, test=numbers(1, 3)).subset(numbers(0, 3, 7))
    assert images.paths == ("0.png", "3.png", "7.png")
    assert images.train.tolist() == [0]
    assert images.test.tolist() == [1, 2]
    assert len(images.class_names) == 4


@settings(deadline=None)
@given(st.integers(3, 40), st.floats(0.01, 0.99), st.integers(0, 5), st.data())
def test_no_class_is_in_two_parts(classes: int, fraction: float, seed: int, data: st.DataObject) -> None:
    test = data.draw(st.lists(st.integers(0, classes - 1), unique=True, max_size=classes - 2))
    images = image_set(classes, test=numbers(*sorted(test))).with_validation(fraction, seed)
    parts = [images.train_classes, images.validation_classes, images.test_classes]
    assert sorted(np.concatenate(parts)) == list(range(classes))
    assert sorted(np.concatenate([images.train, images.validation, images.test])) == list(range(len(images)))
    assert len(images.validation_classes) > 0
    assert len(images.train_classes) > 0
    assert images.test_classes.tolist() == sorted(test)
    again = image_set(classes, test=numbers(*sorted(test))).with_validation(fraction, seed)
    assert again.validation_classes.tolist() == images.validation_classes.tolist()


def test_another_seed_draws_other_classes() -> None:
    images = image_set(60)
    assert len({tuple(images.with_validation(0.3, seed).validation_classes) for seed in range(5)}) == 5


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_bad_fraction(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"must be between 0 and 1, got .*\. Try 0\.2\.$"):
        image_set(4).with_validation(fraction)


def test_too_few_classes_for_validation() -> None:
    with pytest.raises(ValueError, match=r"at least 2 .* got 1\. Add classes"):
        image_set(2).with_validation(0.5)


@pytest.mark.parametrize(
    ("labels", "test", "validation", "text"),
    [
        ([0], [1], [], r"one label per path, got 1 for 2 paths"),
        ([0, 2], [1], [], r"labels must be class numbers from 0 to 1, got 0 to 2"),
        ([-1, 0], [1], [], r"labels must be class numbers from 0 to 1, got -1 to 0"),
        ([0, 1], [2], [], r"test classes must be class numbers from 0 to 1, got 2 to 2"),
        ([0, 1], [1], [-1], r"validation classes must be class numbers from 0 to 1, got -1 to -1"),
        ([0, 1], [1], [1], r"each class must be in one part of the split, got 'b' in test and validation"),
    ],
)
def test_contradictions(labels: list[int], test: list[int], validation: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ImageSet(
            "folder", ROOT, FolderSource(ROOT), ("0", "1"), numbers(*labels), ("a", "b"), numbers(*test), numbers(*validation)
        )
