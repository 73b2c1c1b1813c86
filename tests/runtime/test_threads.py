import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pytest
import torch

from liftedstruct.runtime.threads import limit_threads, parallel_for

T = TypeVar("T")
MANY = 3  # more than one even on a single core


@pytest.fixture(autouse=True)
def many_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(MANY)
    yield
    torch.set_num_threads(before)


def in_a_new_thread(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_other_threads_are_not_affected() -> None:
    with limit_threads(1) as count:
        assert count == 1
        assert torch.get_num_threads() == 1
        assert in_a_new_thread(torch.get_num_threads) == MANY
    assert torch.get_num_threads() == MANY


def test_large_workloads_keep_all_threads() -> None:
    with limit_threads(1 << 40) as count:
        assert count == MANY
        assert torch.get_num_threads() == MANY


def test_threads_of_another_library() -> None:
    threads = [5]
    with limit_threads(1, lambda: threads[-1], threads.append):
        assert threads == [5, 1]
        assert torch.get_num_threads() == MANY
    assert threads == [5, 1, 5]


def test_two_threads_that_overlap() -> None:
    """The second thread enters while the first is inside, and leaves after it."""
    second_is_in, first_is_out = threading.Event(), threading.Event()

    def second() -> int:
        with limit_threads(1):
            second_is_in.set()
            assert first_is_out.wait(10)
        return torch.get_num_threads()

    with ThreadPoolExecutor(1) as pool:
        with limit_threads(1):
            found = pool.submit(second)
            assert second_is_in.wait(10)
        first_is_out.set()
        assert found.result() == MANY
    assert torch.get_num_threads() == in_a_new_thread(torch.get_num_threads) == MANY


def test_a_thread_keeps_its_own_number() -> None:
    def work() -> int:
        assert torch.get_num_threads() == MANY  # the first call adopts the default
        torch.set_num_threads(2)
        in_a_new_thread(partial(torch.set_num_threads, MANY))  # restores the default
        with limit_threads(1):
            pass
        return torch.get_num_threads()

    assert in_a_new_thread(work) == 2
    assert in_a_new_thread(torch.get_num_threads) == MANY


def test_parallel_for_uses_one_torch_thread_each_and_does_not_affect_others() -> None:
    seen: list[int] = []
    started = threading.Barrier(MANY + 1)

    def work(item: int) -> None:
        seen.append(torch.get_num_threads())
        started.wait(10)
        started.wait(10)

    with ThreadPoolExecutor(1) as pool:
        shared = pool.submit(parallel_for, work, range(MANY))
        started.wait(10)
        outside = in_a_new_thread(torch.get_num_threads)
        started.wait(10)
        shared.result()
    assert seen == [1] * MANY
    assert outside == MANY
    assert in_a_new_thread(torch.get_num_threads) == MANY


def test_many_threads_at_once() -> None:
    def work(item: int) -> int:
        for _ in range(5):
            with limit_threads(1):
                assert torch.get_num_threads() == 1
            parallel_for(lambda _: None, range(3))
        return torch.get_num_threads()

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(work, range(16))) == {MANY}
    assert in_a_new_thread(torch.get_num_threads) == MANY
