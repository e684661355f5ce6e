"""A page is free, or some rows or the tree hold it."""

import pytest

from inference_api.core.state.pool import PagePool
from tests.inference_api.core.state.memory import holders


def test_pages_are_taken_from_the_lowest_on_and_freed_ones_before_new_ones() -> None:
    pool = PagePool(4)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]
    pool.drop(0)
    pool.drop(2)
    assert [pool.take() for _ in range(4)] == [2, 0, 3, None]


def test_a_page_is_free_once_the_last_row_has_dropped_it() -> None:
    pool = PagePool(1)
    assert pool.take() == 0
    pool.share(0)
    assert holders(pool, 0) == 2
    pool.drop(0)
    assert pool.num_free == 0
    pool.drop(0)
    assert (holders(pool, 0), pool.num_free) == (0, 1)


def test_what_only_the_tree_keeps_is_cached() -> None:
    pool = PagePool(2)
    assert pool.take() == 0
    pool.keep(0)
    assert (holders(pool, 0), pool.num_cached) == (2, 0)
    pool.drop(0)
    assert (pool.num_free, pool.num_cached) == (1, 1)
    pool.share(0)
    assert (pool.num_free, pool.num_cached) == (1, 0)
    pool.drop(0)
    pool.forget(0)
    assert (pool.num_free, pool.num_cached) == (2, 0)


def test_what_the_tree_forgets_stays_with_its_rows() -> None:
    pool = PagePool(1)
    assert pool.take() == 0
    pool.keep(0)
    pool.forget(0)
    assert (holders(pool, 0), pool.num_free) == (1, 0)


def test_a_free_page_is_shared_by_its_number() -> None:
    pool = PagePool(3)
    pool.share(1)
    assert [pool.take() for _ in range(3)] == [0, 2, None]


def test_a_page_is_not_dropped_twice() -> None:
    pool = PagePool(1)
    assert pool.take() == 0
    pool.drop(0)
    with pytest.raises(AssertionError, match="dropped once"):
        pool.drop(0)


def test_pages_that_are_given_back_are_as_if_they_were_never_used() -> None:
    pool = PagePool(4)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]
    for page in (0, 1):
        pool.drop(page)
    assert (pool.num_free, pool.num_touched) == (3, 3)
    assert pool.give_back(1) == [1]
    assert (pool.num_free, pool.num_touched) == (3, 2)
    assert [pool.take() for _ in range(4)] == [0, 1, 3, None]


def test_only_free_pages_are_given_back() -> None:
    pool = PagePool(3)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]
    pool.keep(1)
    for page in (1, 2):
        pool.drop(page)
    assert pool.give_back(3) == [2]
    assert pool.give_back(3) == []
    assert (pool.num_free, pool.num_cached, pool.num_touched) == (1, 1, 2)
