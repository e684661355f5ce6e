"""Which row a prompt gets, and what of it is in some row's cache already."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_api.core.rows import MIN_REUSED_TOKENS, RowTable, Tokens, UserRow
from inference_api.request import GenerationRequest, OutputQueue, SessionId
from inference_api.runner import Drawn

CONTEXT = 100
SYSTEM = tuple(range(100, 130))


def admit(rows: RowTable, prompt: Tokens) -> UserRow:
    return rows.assign(
        GenerationRequest(OutputQueue(SessionId("s"), "m"), "m", prompt, max_tokens=50),
        CONTEXT,
        0.0,
    )


def run(rows: RowTable, prompt: Tokens, answer: Tokens = (), chunk_tokens: int = 1000) -> UserRow:
    """Admit a prompt and let it write its cache as a loop would; the row stays busy."""
    row = admit(rows, prompt)
    prefill(row, chunk_tokens)
    for token in answer:
        row.take_step()
        row.accept([Drawn(token)], batch_size=1)
    return row


def prefill(row: UserRow, chunk_tokens: int = 1000) -> None:
    while not row.is_prefilled:
        row.take_prompt(row.chunk_tokens(chunk_tokens))


def test_next_turn_of_a_chat_continues_in_its_row() -> None:
    rows = RowTable(4, reuse_unit_tokens=1)
    for _ in range(2):
        rows.free(run(rows, tuple(range(200, 240)), (1, 2)))
    rows.free(first := run(rows, SYSTEM, answer=(1, 2, 3)))
    second = admit(rows, (*SYSTEM, 1, 2, 3, 50, 51))
    assert second.index == first.index
    assert second.reused_tokens == len(SYSTEM) + 2  # the answer's last token was never written


def test_prompt_that_shares_little_leaves_the_other_conversation_alone() -> None:
    rows = RowTable(2, reuse_unit_tokens=1)
    rows.free(first := run(rows, (*SYSTEM, *range(200, 260))))
    other = admit(rows, (*SYSTEM, 1, 2))
    assert other.index != first.index
    assert other.reused_tokens == 0
    assert rows.longest_prefix(other) == (first.index, len(SYSTEM))


def test_shared_prefix_is_found_in_a_row_that_still_runs() -> None:
    rows = RowTable(2, reuse_unit_tokens=1)
    running = run(rows, (*SYSTEM, 7), answer=(1, 2))
    other = admit(rows, (*SYSTEM, 8, 9))
    assert rows.longest_prefix(other) == (running.index, len(SYSTEM))


def test_what_busy_rows_hold_and_what_free_ones_keep_is_counted() -> None:
    rows = RowTable(3, reuse_unit_tokens=1)
    assert rows.cached_tokens() == (0, 0)
    rows.free(run(rows, SYSTEM, answer=(1, 2)))  # of its tokens the last was never written
    assert rows.cached_tokens() == (0, len(SYSTEM) + 1)
    running = run(rows, tuple(range(200, 240)), answer=(1,))
    assert rows.cached_tokens() == (40, len(SYSTEM) + 1)
    admit(rows, (*SYSTEM, 1, 3))  # goes on where the first ended, and finds 31 tokens there
    assert rows.cached_tokens() == (40 + len(SYSTEM) + 1, 0)
    rows.free(running)
    assert rows.cached_tokens() == (len(SYSTEM) + 1, 40)
    rows.forget(running.index)
    assert rows.cached_tokens() == (len(SYSTEM) + 1, 0)


def test_a_table_that_reuses_nothing_keeps_nothing() -> None:
    rows = RowTable(2)
    rows.free(run(rows, SYSTEM, answer=(1, 2)))
    assert rows.cached_tokens() == (0, 0)


def test_what_is_not_prefilled_yet_is_not_offered() -> None:
    rows = RowTable(2, reuse_unit_tokens=1)
    half_way = admit(rows, (*SYSTEM, 7))
    half_way.take_prompt(12)
    other = admit(rows, (*SYSTEM, 8))
    assert rows.longest_prefix(other) == (half_way.index, 12)


def test_last_token_of_a_prompt_is_always_left_to_decode() -> None:
    rows = RowTable(1, reuse_unit_tokens=1)
    rows.free(run(rows, SYSTEM, answer=(1, 2)))
    again = admit(rows, SYSTEM)
    assert again.reused_tokens == len(SYSTEM) - 1
    assert again.is_prefilled


def test_row_that_was_free_longest_is_overwritten_first() -> None:
    rows = RowTable(3, reuse_unit_tokens=1)
    users = [run(rows, tuple(range(base, base + 20))) for base in (200, 300, 400)]
    for index in (1, 0, 2):
        rows.free(users[index])
    assert [admit(rows, (9, 9)).index for _ in range(3)] == [1, 0, 2]


@pytest.mark.parametrize(("unit_tokens", "expected"), [(0, 0), (1, 29), (8, 24), (16, 16), (64, 0)])
def test_prefixes_are_reused_by_units(unit_tokens: int, expected: int) -> None:
    rows = RowTable(1, unit_tokens)
    rows.free(run(rows, SYSTEM, answer=(1, 2), chunk_tokens=unit_tokens or 1000))
    assert admit(rows, SYSTEM).reused_tokens == expected


def test_by_units_only_whole_chunks_are_reused() -> None:
    """The eighth chunk of this prompt had seven tokens: its last token was decoded."""
    rows = RowTable(1, reuse_unit_tokens=8)
    rows.free(run(rows, tuple(range(64)), answer=(1, 2), chunk_tokens=8))
    assert admit(rows, tuple(range(80))).reused_tokens == 56


prompts = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=30).map(tuple)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(prompts, st.integers(0, 4), st.booleans()), max_size=20), st.data())
def test_what_is_reused_is_what_the_cache_holds(
    plan: list[tuple[Tokens, int, bool]], data: st.DataObject
) -> None:
    """A model of the caches as lists of tokens: reads and writes them as a runner would."""
    rows = RowTable(3, reuse_unit_tokens=1)
    caches: list[list[int]] = [[], [], []]
    for prompt, num_answer, is_cancelled in plan:
        if not rows.has_free_row():
            rows.free(data.draw(st.sampled_from(rows.busy())))
        row = admit(rows, prompt)
        source, num_tokens = rows.longest_prefix(row)
        if source != row.index:
            assert num_tokens >= MIN_REUSED_TOKENS
            caches[row.index][:num_tokens] = caches[source][:num_tokens]
            row.reuse(num_tokens)
        assert tuple(caches[row.index][: row.num_cached]) == prompt[: row.num_cached]
        if is_cancelled:
            rows.free(row)
            continue
        while not row.is_prefilled:
            chunk = row.take_prompt(row.chunk_tokens(7))
            caches[row.index][chunk.start :] = chunk.token_ids
        for token in range(3, 3 + num_answer):
            each = row.take_step()
            caches[row.index][each.start :] = each.token_ids
            row.accept([Drawn(token)], batch_size=1)
