"""Which row a prompt gets, and what of it is remembered already."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api.core.rows import RowTable, Tokens, UserRow
from inference_api.request import (
    GenerationParams,
    GenerationRequest,
    OutputQueue,
    SamplingParams,
    SessionId,
)
from inference_api.runner import Drawn
from tests.inference_api.core.state.memory import PAGE_TOKENS, FakeMemory, make_pages

CONTEXT = 8 * PAGE_TOKENS
SYSTEM = tuple(range(100, 100 + 2 * PAGE_TOKENS + 10))


def make_rows(
    max_rows: int, reuses: bool = True, is_bound: bool = False
) -> tuple[RowTable, FakeMemory]:
    pages, memory = make_pages(max_rows * CONTEXT // PAGE_TOKENS, max_rows, reuses, is_bound)
    return RowTable(max_rows, pages), memory


def admit(rows: RowTable, prompt: Tokens, cache_salt: str = "", scores: bool = False) -> UserRow:
    request = GenerationRequest(
        OutputQueue(SessionId("s"), "m"),
        "m",
        prompt,
        GenerationParams(50, cache_salt=cache_salt, num_prompt_logprobs=0 if scores else None),
    )
    return rows.assign(request, CONTEXT, 0.0)


def run(rows: RowTable, prompt: Tokens, answer: Tokens = ()) -> UserRow:
    """Admit a prompt and let it write its cache as a loop would; the row stays busy."""
    row = admit(rows, prompt)
    prefill(rows, row)
    for token in answer:
        assert rows.reserve(row, 1)
        row.take_step()
        row.accept([Drawn(token)], batch_size=1)
    return row


def prefill(rows: RowTable, row: UserRow) -> None:
    assert rows.reserve(row, row.chunk_tokens(CONTEXT))
    row.take_prompt(row.chunk_tokens(CONTEXT))
    rows.seal(row)


def test_next_turn_of_a_chat_goes_on_where_the_answer_ended() -> None:
    rows, _ = make_rows(4)
    rows.free(run(rows, SYSTEM, answer=(1, 2, 3)))
    second = admit(rows, (*SYSTEM, 1, 2, 3, 50, 51))
    assert second.reused_tokens == len(SYSTEM) + 2  # the answer's last token was never written


def test_next_turn_stays_in_its_row_where_pages_are_bound() -> None:
    rows, memory = make_rows(4, is_bound=True)
    for _ in range(2):
        rows.free(run(rows, tuple(range(200, 240)), (1, 2)))
    rows.free(first := run(rows, SYSTEM, answer=(1, 2, 3)))
    second = admit(rows, (*SYSTEM, 1, 2, 3, 50, 51))
    assert second.index == first.index
    assert memory.copies == []


def test_whole_pages_of_a_row_that_runs_are_shared() -> None:
    rows, memory = make_rows(2)
    run(rows, (*SYSTEM, 7), answer=(1, 2))
    assert admit(rows, (*SYSTEM, 8, 9)).reused_tokens == 2 * PAGE_TOKENS
    assert memory.tables[1] == memory.tables[0][:2]


def test_a_prompt_that_waits_takes_over_what_another_has_prefilled_by_its_turn() -> None:
    rows, _ = make_rows(2)
    first, second = admit(rows, (*SYSTEM, 7)), admit(rows, (*SYSTEM, 8))
    prefill(rows, first)
    rows.reuse(second)
    assert second.reused_tokens == second.num_cached == 2 * PAGE_TOKENS


def test_what_is_not_prefilled_yet_is_not_offered() -> None:
    rows, _ = make_rows(2)
    half_way = admit(rows, (*SYSTEM, 7))
    assert rows.reserve(half_way, PAGE_TOKENS + 3)
    half_way.take_prompt(PAGE_TOKENS + 3)
    assert admit(rows, (*SYSTEM, 8)).reused_tokens == 0
    rows.seal(half_way)
    rows.free(rows.busy()[1])
    assert admit(rows, (*SYSTEM, 8)).reused_tokens == PAGE_TOKENS


def test_last_token_of_a_prompt_is_always_left_to_decode() -> None:
    rows, _ = make_rows(1)
    rows.free(run(rows, SYSTEM, answer=(1, 2)))
    again = admit(rows, SYSTEM)
    assert again.reused_tokens == len(SYSTEM) - 1
    assert again.is_prefilled


def test_prompt_whose_every_token_is_scored_reuses_nothing() -> None:
    rows, _ = make_rows(1)
    rows.free(run(rows, SYSTEM))
    assert admit(rows, SYSTEM, scores=True).reused_tokens == 0


def test_prompts_of_another_salt_share_nothing() -> None:
    rows, _ = make_rows(2)
    rows.free(run(rows, SYSTEM))
    assert admit(rows, SYSTEM, cache_salt="mine").reused_tokens == 0
    assert admit(rows, SYSTEM).reused_tokens == len(SYSTEM) - 1


def test_row_that_was_free_longest_is_taken_first() -> None:
    rows, _ = make_rows(3)
    users = [run(rows, tuple(range(base, base + 20))) for base in (200, 300, 400)]
    for index in (1, 0, 2):
        rows.free(users[index])
    assert [admit(rows, (9, 9)).index for _ in range(3)] == [1, 0, 2]


@pytest.mark.parametrize(
    ("reuses", "is_bound", "expected"),
    [
        (False, False, 0),
        (False, True, 0),
        (True, True, 2 * PAGE_TOKENS),
        (True, False, len(SYSTEM) + 1),
    ],
)
def test_what_is_reused_depends_on_the_runner(reuses: bool, is_bound: bool, expected: int) -> None:
    rows, _ = make_rows(1, reuses, is_bound)
    rows.free(run(rows, SYSTEM, answer=(1, 2)))
    assert admit(rows, (*SYSTEM, 1, 2, 3)).reused_tokens == expected


prompts = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=40).map(tuple)


@given(
    st.lists(st.tuples(prompts, st.integers(0, 4), st.booleans()), max_size=20),
    st.booleans(),
    st.data(),
)
def test_what_is_reused_is_what_was_written(
    plan: list[tuple[Tokens, int, bool]], is_bound: bool, data: st.DataObject
) -> None:
    """Rows read and write a memory as a runner would."""
    rows, memory = make_rows(3, is_bound=is_bound)

    def write(row: UserRow, start: int) -> None:
        tokens = (*row.request.prompt_tokens, *row.generated)
        for position in range(start, row.num_cached):
            memory.write(row.index, position, ("", tokens[: position + 1]))

    for prompt, num_answer, is_cancelled in plan:
        if len(rows) == len(rows.users):
            rows.free(data.draw(st.sampled_from(rows.busy())))
        row = admit(rows, prompt)
        for position in range(row.num_cached):
            assert memory.read(row.index, position) == ("", prompt[: position + 1])
        if is_cancelled:
            rows.free(row)
            continue
        while not row.is_prefilled:
            num_tokens = row.chunk_tokens(7)
            assert rows.reserve(row, num_tokens)
            chunk = row.take_prompt(num_tokens)
            write(row, chunk.start)
            rows.seal(row)
        for token in range(3, 3 + num_answer):
            assert rows.reserve(row, 1)
            each = row.take_step()
            write(row, each.start)
            row.accept([Drawn(token)], batch_size=1)


def few_pages(num_pages: int) -> RowTable:
    pages, _ = make_pages(num_pages, max_rows=4)
    return RowTable(4, pages)


def paused(rows: RowTable) -> list[GenerationRequest]:
    return [each.request for each in rows.paused]


def test_who_was_admitted_last_pauses_and_comes_back_with_what_was_said() -> None:
    rows = few_pages(6)
    first = run(rows, tuple(range(2 * PAGE_TOKENS)))
    second = run(rows, tuple(range(500, 500 + 2 * PAGE_TOKENS)))
    last = run(rows, tuple(range(700, 700 + 2 * PAGE_TOKENS)), answer=(1,))
    assert rows.make_room(second, 2)  # its third page
    assert (paused(rows), rows.take_pauses(), rows.take_pauses()) == ([last.request], 1, 0)
    rows.resume()
    assert paused(rows) == [last.request]  # there is room for the others only
    rows.free(first)
    rows.free(second)
    rows.resume()
    (again,) = rows.busy()
    assert rows.paused == []
    assert again is not last
    assert (again.request, again.number, again.generated) == (last.request, last.number, [1])
    assert again.tokens == (*last.request.prompt_tokens, 1)
    assert again.num_cached == PAGE_TOKENS  # the second of its pages was taken
    assert again.chunk_tokens(100) == PAGE_TOKENS
    assert again.reused_tokens == last.reused_tokens == 0


@pytest.mark.parametrize("num_prefilled", [0, 2])
def test_what_a_paused_row_finds_of_its_own_was_not_reused(num_prefilled: int) -> None:
    rows = few_pages(8)
    first = run(rows, SYSTEM)  # three pages, two of them whole
    last = admit(rows, (*SYSTEM[:PAGE_TOKENS], *range(500, 500 + 3 * PAGE_TOKENS)))
    assert last.reused_tokens == PAGE_TOKENS
    if num_prefilled:
        assert rows.reserve(last, num_prefilled * PAGE_TOKENS)
        last.take_prompt(num_prefilled * PAGE_TOKENS)
        rows.seal(last)
    rows.pause(last)
    rows.free(first)
    rows.resume()
    (again,) = rows.busy()
    assert again.num_cached == (1 + num_prefilled) * PAGE_TOKENS
    assert again.reused_tokens == PAGE_TOKENS


def test_nobody_is_admitted_before_those_who_paused() -> None:
    rows = few_pages(4)
    first, last = (run(rows, tuple(range(at, at + 2 * PAGE_TOKENS))) for at in (0, 500))
    newcomer = last.request
    assert rows.make_room(first, 2)
    assert paused(rows) == [newcomer]
    rows.free(first)
    assert not rows.may_admit(newcomer)
    rows.free(rows.paused[0])  # it has left
    assert rows.paused == []
    assert rows.may_admit(newcomer)


def test_the_last_pauses_itself_rather_than_an_earlier_one() -> None:
    rows = few_pages(4)
    first, last = (run(rows, tuple(range(at, at + 2 * PAGE_TOKENS))) for at in (0, 500))
    assert not rows.make_room(last, 2)
    assert (rows.busy(), paused(rows)) == ([first], [last.request])


@pytest.mark.parametrize(("num_pages", "is_admitted"), [(6, False), (7, True)])
def test_two_pages_are_left_to_each_row_that_runs(num_pages: int, is_admitted: bool) -> None:
    rows = few_pages(num_pages)
    waiting = admit(rows, tuple(range(500, 500 + 2 * PAGE_TOKENS - 1)))
    rows.free(waiting)
    run(rows, tuple(range(3 * PAGE_TOKENS)))
    assert rows.may_admit(waiting.request) == is_admitted


def test_what_running_rows_hold_of_a_prompt_needs_no_other_pages() -> None:
    rows = few_pages(7)
    run(rows, tuple(range(4 * PAGE_TOKENS + 1)))
    waiting = admit(rows, tuple(range(4 * PAGE_TOKENS + 1)))
    rows.free(waiting)
    assert rows.may_admit(waiting.request)


def test_who_waits_has_no_more_looked_at_than_it_lacks() -> None:
    """It is asked in every turn, and a prompt may have more than 100,000 tokens."""
    rows = few_pages(400)
    row = admit(rows, tuple(range(300 * PAGE_TOKENS + 1)))
    assert rows.reserve(row, 300 * PAGE_TOKENS)
    row.take_prompt(300 * PAGE_TOKENS)
    rows.seal(row)
    beginning = CountedTokens(range(90 * PAGE_TOKENS))
    other = CountedTokens(range(-1, -200 * PAGE_TOKENS, -1))
    for tokens, most_pages, is_there in ((beginning, 0, True), (other, 1, False)):
        assert rows.pages.can_begin("", tokens, 0) == is_there
        assert tokens.num_read <= most_pages * PAGE_TOKENS
    longer = CountedTokens(range(399 * PAGE_TOKENS))
    assert rows.pages.can_begin("", longer, 0)  # of which rows hold what is missing
    assert longer.num_read <= 299 * PAGE_TOKENS


class CountedTokens(tuple[int, ...]):
    num_read = 0

    def __getitem__(self, part: slice) -> tuple[int, ...]:  # type: ignore[override]
        read = super().__getitem__(part)
        self.num_read += len(read)
        return read


@pytest.mark.parametrize("penalty", [1.0, 1.1])
def test_a_penalty_reads_each_token_of_a_long_prompt_once(penalty: float) -> None:
    rows, _ = make_rows(1)
    params = GenerationParams(sampling=SamplingParams(repetition_penalty=penalty))
    request = replace(admit(rows, (5, 6, 5, 7, 5)).request, params=params)
    (draw,) = UserRow(0, request, 5, 0.0).take_step().draws
    assert draw.prompt_ids == (frozenset() if penalty == 1.0 else {5, 6, 7})
