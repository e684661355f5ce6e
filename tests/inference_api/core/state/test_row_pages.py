"""Rows share the pages of equal beginnings, and what is cached makes room."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api.core.state.page_folder import PageRecord
from inference_api.core.state.row_pages import RowPages
from inference_api.core.state.stored_pages import Disk
from inference_api.runner import PageLayout
from tests.inference_api.core.state.memory import PAGE_TOKENS, FakeFolder, FakeMemory, make_pages

ONES, TWOS = (1,) * PAGE_TOKENS, (2,) * PAGE_TOKENS


def run(pages: RowPages, prompt: tuple[int, ...], generated: tuple[int, ...] = ()) -> int:
    """A request in row 0, from its beginning to its end; how much of it was reused."""
    reused_tokens = pages.begin(0, "model", prompt)
    num_tokens = len(prompt) + len(generated) - 1  # the last one is not written
    assert pages.reserve(0, num_tokens)
    pages.end(0, num_tokens, generated)
    return reused_tokens


def test_pages_are_reserved_up_to_a_position() -> None:
    pages, memory = make_pages(num_pages=3, max_rows=2)
    assert pages.begin(0, "model", ONES) == 0
    assert pages.reserve(0, 1)
    assert pages.reserve(0, PAGE_TOKENS)
    assert memory.tables == {0: [0]}
    assert pages.reserve(0, PAGE_TOKENS + 1)
    assert memory.tables == {0: [0, 1]}
    assert (pages.counts.free, pages.counts.cached, pages.counts.held) == (1, 0, 2)


def test_where_pages_cannot_be_had_nothing_changes() -> None:
    pages, memory = make_pages(num_pages=3, max_rows=2)
    run(pages, (*ONES, 3))
    pages.begin(0, "model", TWOS)
    pages.begin(1, "model", TWOS)
    assert pages.reserve(0, 2 * PAGE_TOKENS)
    assert pages.counts.cached == 1
    assert not pages.can_reserve(2)
    assert not pages.reserve(1, 2 * PAGE_TOKENS)
    assert pages.counts.cached == 1
    assert 1 not in memory.tables
    assert pages.can_reserve(1)
    assert pages.reserve(1, PAGE_TOKENS)
    assert (pages.counts.free, pages.counts.cached, pages.counts.held) == (0, 0, 3)


def test_a_prompt_shares_whole_pages_and_copies_the_beginning_of_one() -> None:
    pages, memory = make_pages(num_pages=6, max_rows=2)
    assert run(pages, ONES + TWOS + (3,)) == 0
    first, second = memory.tables[0][:2]
    assert pages.begin(1, "model", ONES + TWOS[:9] + ONES) == PAGE_TOKENS + 9
    assert memory.tables[1][0] == first
    assert memory.copies == [(second, memory.tables[1][1])]


def test_the_last_token_of_a_prompt_is_never_reused() -> None:
    pages, _ = make_pages(num_pages=6, max_rows=1)
    run(pages, ONES + TWOS + (3,))
    assert pages.begin(0, "model", ONES + TWOS) == 2 * PAGE_TOKENS - 1


def test_an_answer_is_reused_with_its_end() -> None:
    pages, memory = make_pages(num_pages=6, max_rows=1)
    run(pages, ONES, TWOS[:10])
    tail = memory.tables[0][1]
    assert run(pages, ONES + TWOS + ONES) == PAGE_TOKENS + 9
    assert memory.copies == [(tail, memory.tables[0][1])]


def test_what_was_written_behind_the_end_of_an_answer_is_not_reused() -> None:
    pages, _ = make_pages(num_pages=6, max_rows=1)
    pages.begin(0, "model", ONES)
    assert pages.reserve(0, 40)
    pages.end(0, 40, (2,) * 9)
    assert pages.counts.cached == 2
    assert pages.begin(0, "model", ONES + TWOS + TWOS) == PAGE_TOKENS + 9


def test_a_row_takes_the_page_that_another_has_sealed() -> None:
    pages, memory = make_pages(num_pages=6, max_rows=2)
    for row in (0, 1):
        pages.begin(row, "model", ONES + TWOS)
        assert pages.reserve(row, PAGE_TOKENS + 1)
    assert pages.counts.held == 4
    pages.seal(0, PAGE_TOKENS)
    pages.seal(1, PAGE_TOKENS)
    assert memory.tables[1][0] == memory.tables[0][0]
    assert memory.tables[1][1] != memory.tables[0][1]
    assert pages.counts.held == 3


def test_a_prompt_that_waits_takes_over_what_was_sealed_meanwhile() -> None:
    pages, memory = make_pages(num_pages=7, max_rows=2)
    prompt = ONES + TWOS + ONES
    assert pages.begin(0, "model", prompt) == pages.begin(1, "model", prompt) == 0
    assert pages.reserve(0, 30)
    assert pages.reserve(1, 30)
    pages.seal(0, 30)
    assert pages.begin(1, "model", prompt) == 2 * PAGE_TOKENS
    assert memory.tables[1][:2] == memory.tables[0][:2]
    assert pages.counts.held == 4
    pages.end(0, 33)
    assert pages.begin(1, "model", prompt) == 2 * PAGE_TOKENS + 9
    assert memory.copies == [(memory.tables[0][2], memory.tables[1][2])]
    assert pages.begin(1, "model", prompt) == 2 * PAGE_TOKENS + 9
    assert len(memory.copies) == 1


def test_a_prompt_that_is_needed_whole_reuses_nothing() -> None:
    pages, memory = make_pages(num_pages=6, max_rows=2)
    run(pages, ONES + TWOS)
    sealed = memory.tables[0][0]
    assert pages.begin(1, "model", ONES + TWOS, reuses=False) == 0
    assert pages.reserve(1, PAGE_TOKENS)
    pages.seal(1, PAGE_TOKENS)
    assert memory.tables[1] == [sealed]


def test_nothing_is_reused_under_another_root() -> None:
    pages, _ = make_pages(num_pages=6, max_rows=1)
    run(pages, ONES + TWOS)
    assert pages.begin(0, "adapter", ONES + TWOS) == 0


@pytest.mark.parametrize(("reuses", "num_tokens"), [(True, 32), (False, 0)])
def test_nothing_is_reused_where_reuse_is_off(reuses: bool, num_tokens: int) -> None:
    pages, _ = make_pages(num_pages=6, max_rows=1, reuses=reuses)
    run(pages, ONES + TWOS, ONES[:9])
    assert pages.begin(0, "model", ONES + TWOS + ONES) == num_tokens


def test_the_end_of_a_request_is_dropped_where_no_page_is_left_to_copy_it_to() -> None:
    pages, memory = make_pages(num_pages=3, max_rows=3)
    run(pages, ONES + TWOS + (3,))
    assert pages.begin(0, "model", ONES + TWOS + ONES) == 2 * PAGE_TOKENS
    assert pages.begin(1, "model", ONES[:9]) == 8
    assert pages.begin(2, "model", ONES[:9]) == 0
    assert len(memory.copies) == 1
    assert (pages.counts.held, pages.counts.free) == (3, 0)


def test_a_page_that_is_copied_is_not_the_one_evicted_for_it() -> None:
    pages, memory = make_pages(num_pages=2, max_rows=1)
    run(pages, ONES)
    run(pages, TWOS)
    assert pages.counts.free == 0
    assert pages.begin(0, "model", ONES[:10] + TWOS) == 10
    assert memory.copies == [(0, 1)]


def test_a_page_is_not_evicted_for_its_own_copy() -> None:
    pages, memory = make_pages(num_pages=1, max_rows=1)
    run(pages, ONES)
    assert pages.counts.cached == 1
    assert pages.begin(0, "model", ONES[:10] + TWOS) == 0
    assert (memory.copies, pages.counts.held, pages.counts.cached) == ([], 0, 1)


def test_what_no_row_holds_is_forgotten() -> None:
    pages, _ = make_pages(num_pages=6, max_rows=2)
    run(pages, ONES + TWOS + ONES)
    assert pages.begin(1, "model", ONES + TWOS[:3]) == PAGE_TOKENS
    pages.forget_cached()
    assert (pages.counts.free, pages.counts.cached, pages.counts.held) == (5, 0, 1)
    assert pages.begin(0, "model", ONES + TWOS) == PAGE_TOKENS


def test_memory_is_given_back_down_to_so_many_pages() -> None:
    pages, memory = make_pages(num_pages=9, max_rows=2)
    run(pages, (*ONES, *ONES, 3))
    old = memory.tables[0][1]
    run(pages, (*TWOS, *TWOS, 3))
    assert pages.begin(1, "model", (*ONES, 3)) == PAGE_TOKENS
    assert (pages.counts.held, pages.counts.cached, pages.counts.free) == (1, 3, 5)
    pages.trim(5)
    assert memory.given_back == []
    pages.trim(3)
    assert memory.given_back == [old]
    assert (pages.counts.held, pages.counts.cached, pages.counts.free) == (1, 2, 6)
    pages.trim(0)
    assert (pages.counts.held, pages.counts.cached, pages.counts.free) == (1, 0, 8)
    assert set(memory.given_back) == {0, 1, 2, 3} - {memory.tables[1][0]}
    memory.given_back.clear()
    pages.trim(0)
    assert memory.given_back == []


WINDOWS = (None, 2 * PAGE_TOKENS)


def test_memory_is_prepared_for_what_is_on_disk_until_some_is_given_back() -> None:
    pages, memory = make_pages(20, 2)
    folder = FakeFolder()
    pages.store(Disk(folder, b"fingerprint", memory.view_page))
    assert pages.disk is not None
    assert not pages.disk.prepare()
    folder.put(PageRecord(b"key", 1, b""))
    while pages.disk.prepare():
        pass
    assert pages._pool.num_touched == pages.counts.free == 20
    pages.trim(5)
    assert not pages.disk.prepare()
    assert pages._pool.num_touched == 5


@given(
    chats=st.lists(st.tuples(*[st.sampled_from([(), ONES, TWOS, (3,)])] * 4), max_size=12),
    most=st.integers(1, 12),
    turns=st.integers(1, 3),
)
def test_a_small_disk_keeps_nothing_without_its_beginning(
    chats: list[tuple[tuple[int, ...], ...]], most: int, turns: int
) -> None:
    pages, memory = make_pages(80, 1)
    folder = FakeFolder(most=most)
    pages.store(Disk(folder, b"fingerprint", memory.view_page))
    assert pages.disk is not None
    for number, chat in enumerate(chats):
        run(pages, (*chain(*chat), 5))
        if number % turns == 0:
            pages.disk.write()
    pages.disk.flush(60)
    nodes = [each for each in pages._tree.nodes.values() if each.key in folder.records]
    assert len(nodes) == len(folder.records)
    for node in nodes:
        assert node.parent is not None
        assert node.parent.parent is None or node.parent.key in folder.records


def test_a_window_gives_back_what_it_has_passed() -> None:
    pages, memory = make_pages(num_pages=12, max_rows=2, windows=WINDOWS, reuses=False)
    pages.begin(0, "model", ONES * 5)
    assert pages.reserve(0, 4 * PAGE_TOKENS)
    assert pages.counts.held == 8
    pages.seal(0, 3 * PAGE_TOKENS - 2)
    assert (pages.counts.held, pages.counts.free) == (8, 4)
    pages.seal(0, 3 * PAGE_TOKENS - 1)
    assert (pages.counts.held, pages.counts.free) == (7, 5)
    pages.seal(0, 4 * PAGE_TOKENS)
    assert (pages.counts.held, pages.counts.free) == (6, 6)
    assert pages.reserve(0, 5 * PAGE_TOKENS)
    passed = set(memory.groups[0, 1][:2])
    assert memory.groups[0, 0][4] in passed
    pages.end(0, 5 * PAGE_TOKENS)
    assert pages.counts.free == 12


def test_a_prompt_shares_of_a_window_what_it_sees() -> None:
    pages, memory = make_pages(num_pages=20, max_rows=2, windows=WINDOWS)
    run(pages, ONES * 4 + (3,))
    assert pages.begin(1, "model", ONES * 4 + TWOS) == 4 * PAGE_TOKENS
    assert pages.counts.held == 4 + 2
    assert memory.groups[1, 0] == memory.groups[0, 0][:4]
    assert memory.groups[1, 1][2:] == memory.groups[0, 1][2:4]


def test_a_prompt_goes_on_from_where_windows_see_all_they_need() -> None:
    pages, _ = make_pages(num_pages=20, max_rows=3, windows=WINDOWS)
    assert pages.begin(0, "model", ONES * 4 + TWOS) == 0
    assert pages.reserve(0, 4 * PAGE_TOKENS)
    pages.seal(0, 4 * PAGE_TOKENS)
    assert pages._evict()  # of the first positions, what the window has passed
    assert pages.begin(1, "model", ONES * 2 + TWOS) == 0
    assert pages.begin(2, "model", ONES * 3 + TWOS) == 3 * PAGE_TOKENS
    pages.end(2, 3 * PAGE_TOKENS)
    assert pages.reserve(1, 2 * PAGE_TOKENS)
    pages.seal(1, 2 * PAGE_TOKENS)
    assert pages.begin(2, "model", ONES * 2 + TWOS) == 2 * PAGE_TOKENS  # it is there again


def test_the_first_free_row_is_as_good_as_any() -> None:
    pages, _ = make_pages(num_pages=6, max_rows=3)
    run(pages, ONES + TWOS)
    assert pages.best_row([2, 0], "model", ONES + TWOS) == 2


def test_the_memory_of_the_test_keeps_what_was_written() -> None:
    memory = FakeMemory(PageLayout(2, PAGE_TOKENS, 1), max_rows=1)
    memory.place(0, 0, 0, [1])
    memory.write(0, 3, ("model", ONES))
    memory.copy_page(1, 0)
    memory.place(0, 0, 0, [0])
    assert memory.read(0, 3) == ("model", ONES)
