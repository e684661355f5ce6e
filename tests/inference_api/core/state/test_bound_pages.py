"""Where a page belongs to a row, equal beginnings are copied, or stay where they are."""

import pytest

from inference_api.core.state.row_pages import RowPages
from tests.inference_api.core.state.memory import PAGE_TOKENS, FakeMemory, make_pages

ONES, TWOS = (1,) * PAGE_TOKENS, (2,) * PAGE_TOKENS
ROW_PAGES = 4


def make_bound(max_rows: int = 3, chunk_tokens: int = 1) -> tuple[RowPages, FakeMemory]:
    num_pages = max_rows * ROW_PAGES
    return make_pages(num_pages, max_rows, is_bound=True, chunk_tokens=chunk_tokens)


def start(pages: RowPages, row: int, prompt: tuple[int, ...]) -> int:
    """Begin, compute and seal all but the last token; how many tokens were reused."""
    reused_tokens = pages.begin(row, "model", prompt)
    assert pages.reserve(row, len(prompt) - 1)
    pages.seal(row, len(prompt) - 1)
    return reused_tokens


def run(pages: RowPages, row: int, prompt: tuple[int, ...]) -> int:
    reused_tokens = start(pages, row, prompt)
    pages.end(row, len(prompt) - 1)
    return reused_tokens


def test_a_row_has_its_own_pages_and_no_more() -> None:
    pages, memory = make_bound()
    assert pages.begin(1, "model", ONES) == 0
    assert pages.reserve(1, ROW_PAGES * PAGE_TOKENS)
    assert memory.tables == {1: [4, 5, 6, 7]}
    assert not pages.reserve(1, ROW_PAGES * PAGE_TOKENS + 1)


def test_what_the_row_has_stays_and_is_gone_on_with() -> None:
    pages, memory = make_bound()
    assert run(pages, 1, ONES + TWOS + ONES[:10]) == 0
    assert run(pages, 1, ONES + TWOS + ONES + TWOS) == 2 * PAGE_TOKENS
    assert memory.copies == []


def test_what_another_row_has_is_copied() -> None:
    pages, memory = make_bound()
    run(pages, 1, ONES + TWOS + ONES[:10])
    assert start(pages, 2, ONES + TWOS + ONES + TWOS) == 2 * PAGE_TOKENS
    assert memory.copies == [(4, 8), (5, 9)]
    assert pages.counts.held == 4


def test_a_row_that_begins_evicts_what_it_had_and_what_follows_it() -> None:
    pages, _ = make_bound()
    run(pages, 0, ONES + TWOS + (3,))
    assert run(pages, 1, ONES + TWOS + ONES) == 2 * PAGE_TOKENS
    assert run(pages, 0, (*TWOS, 3)) == 0
    assert pages.begin(2, "model", ONES + TWOS + ONES) == 0


def test_what_a_running_row_has_a_copy_of_is_left_to_it() -> None:
    pages, memory = make_bound()
    run(pages, 0, ONES + TWOS + (3,))
    assert start(pages, 1, ONES + TWOS + ONES) == 2 * PAGE_TOKENS
    assert run(pages, 0, TWOS + TWOS + (3,)) == 0
    memory.copies.clear()
    assert pages.begin(2, "model", ONES + TWOS + ONES) == 2 * PAGE_TOKENS
    assert memory.copies == [(4, 8), (5, 9)]


def test_a_row_takes_back_what_another_has_a_copy_of() -> None:
    pages, memory = make_bound()
    run(pages, 0, ONES + TWOS + (3,))
    start(pages, 1, ONES + TWOS + ONES)
    memory.copies.clear()
    assert start(pages, 0, ONES + TWOS + ONES) == 2 * PAGE_TOKENS
    assert memory.copies == []


def test_rows_that_compute_the_same_keep_their_own_pages() -> None:
    pages, memory = make_bound()
    for row in (0, 1):
        assert pages.begin(row, "model", ONES + TWOS) == 0
        assert pages.reserve(row, PAGE_TOKENS)
    pages.seal(0, PAGE_TOKENS)
    pages.seal(1, PAGE_TOKENS)
    assert memory.tables == {0: [0], 1: [4]}
    pages.end(0, PAGE_TOKENS)
    assert (pages.counts.held, pages.counts.cached) == (1, 1)


def test_a_conversation_goes_on_where_it_is() -> None:
    pages, _ = make_bound()
    run(pages, 1, ONES + TWOS + (3,))
    assert pages.best_row([0, 2, 1], "model", ONES + TWOS + ONES) == 1
    assert pages.best_row([0, 2], "model", ONES + TWOS + ONES) == 0
    assert pages.best_row([2, 0], "model", ONES + TWOS + ONES) == 2


def test_a_long_conversation_is_not_lost_for_a_short_beginning() -> None:
    pages, _ = make_bound()
    run(pages, 1, ONES + TWOS + TWOS + (3,))
    assert pages.best_row([1, 2, 0], "model", ONES + ONES) == 2


@pytest.mark.parametrize(
    ("chunk_tokens", "num_pages"),
    [(1, 3), (PAGE_TOKENS, 3), (2 * PAGE_TOKENS, 2), (PAGE_TOKENS // 2 * 3, 3), (100, 0)],
)
def test_only_whole_chunks_are_reused(chunk_tokens: int, num_pages: int) -> None:
    pages, memory = make_bound(chunk_tokens=chunk_tokens)
    prompt = ONES + TWOS + ONES + (3,)
    run(pages, 1, prompt)
    assert pages.counts.cached == num_pages
    assert start(pages, 2, prompt) == num_pages * PAGE_TOKENS
    assert memory.copies == [(4 + page, 8 + page) for page in range(num_pages)]


def test_a_chunk_whose_end_is_gone_is_computed_again() -> None:
    pages, _ = make_bound(chunk_tokens=2 * PAGE_TOKENS)
    run(pages, 0, ONES + TWOS + (3,))
    pages._tree.cut(pages._tree.nodes[1])
    assert pages.counts.cached == 1
    assert start(pages, 1, ONES + TWOS + (3,)) == 0
