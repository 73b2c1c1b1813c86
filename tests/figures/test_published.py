import pytest

from liftedstruct.data.datasets import CARS, CUB, ONLINE_PRODUCTS
from liftedstruct.figures.published import PUBLISHED, Published, published_for
from liftedstruct.figures.style import COLORS

ROWS = [row for rows in PUBLISHED.values() for row in rows]


def find(name: str, method: str, size: int) -> Published:
    (row,) = [row for row in published_for(name) if (row.method, row.size) == (method, size)]
    return row


def test_the_three_datasets_have_some_and_others_none() -> None:
    assert [len(published_for(dataset.name)) for dataset in (CUB, CARS, ONLINE_PRODUCTS)] == [4, 1, 4]
    assert published_for("folder") == published_for("cub-200-2011") == ()


@pytest.mark.parametrize(
    ("name", "method", "size", "recall"),
    [
        ("CUB-200-2011", "contrastive", 512, {1: 0.264, 2: 0.377, 4: 0.498, 8: 0.623}),
        ("CUB-200-2011", "triplet", 512, {1: 0.361, 2: 0.486, 4: 0.593, 8: 0.700}),
        ("CUB-200-2011", "lifted_struct", 512, {1: 0.472, 2: 0.589, 4: 0.702, 8: 0.802}),
        ("CUB-200-2011", "lifted_struct", 64, {1: 0.436, 2: 0.566, 4: 0.686, 8: 0.796}),
        ("CARS196", "lifted_struct", 64, {1: 0.530, 2: 0.657, 4: 0.760, 8: 0.843}),
        ("Stanford Online Products", "contrastive", 512, {1: 0.420, 10: 0.582, 100: 0.738, 1000: 0.891}),
        ("Stanford Online Products", "triplet", 512, {1: 0.421, 10: 0.635, 100: 0.825, 1000: 0.948}),
        ("Stanford Online Products", "lifted_struct", 512, {1: 0.621, 10: 0.798, 100: 0.913, 1000: 0.974}),
        ("Stanford Online Products", "lifted_struct", 64, {1: 0.625, 10: 0.808, 100: 0.919}),
    ],
)
def test_the_numbers(name: str, method: str, size: int, recall: dict[int, float]) -> None:
    assert find(name, method, size).recall == pytest.approx(recall, abs=1e-12)


def test_all_are_traced_and_possible() -> None:
    for row in ROWS:
        assert row.method in COLORS
        assert row.source
        assert row.trunk
        values = [row.recall[k] for k in sorted(row.recall)]
        assert values == sorted(values)  # Recall@K grows with K
        assert 0 < values[0] < values[-1] < 1


def test_untraced_numbers_of_cars_are_not_there() -> None:
    assert not [row for row in published_for(CARS.name) if row.size == 512]
