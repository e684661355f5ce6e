"""Prompt lookup proposes what followed the last tokens before: now, and as the answer grows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api.core.drafts import Outcome
from inference_api.core.rows import UserRow
from inference_api.runner import Drawn
from inference_api.speculation import ngram
from inference_api.speculation.ngram import NO_MATCH, NgramDrafts, NgramIndex
from tests.inference_api.speculation.rows import rows_of

WORDS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def looked_up(tokens: list[int], max_tokens: int) -> list[int]:
    """The slow way."""
    for size in (3, 2):
        for at in range(len(tokens) - 1, size - 1, -1):
            if tokens[at - size : at] == tokens[-size:]:
                following = tokens[at:]
                return (following * max_tokens)[:max_tokens]
    return []


@pytest.mark.parametrize(
    ("tokens", "expected", "size"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], [4, 5, 6, 1], 3),
        ([1, 2, 3, 4, 9, 1, 2, 3, 5, 1, 2, 3], [5, 1, 2, 3], 3),  # the latest
        ([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], [4, 9, 2, 3], 3),  # the longest
        ([1, 2, 3, 9, 2, 3], [9, 2, 3, 9], 2),  # goes on as a loop does
        ([7, 7, 7], [7, 7, 7, 7], 2),
    ],
)
def test_what_followed_before_is_proposed(
    tokens: list[int], expected: list[int], size: int
) -> None:
    rows = rows_of(tokens)
    [draft] = NgramDrafts(4).propose(rows).values()
    assert (list(draft.token_ids), draft.parents) == (expected, None)
    assert NgramIndex(rows[0]).match(4).size == size


@pytest.mark.parametrize("tokens", [[1], [1, 1], [1, 2, 3, 4], [1, 2, 3, 1]])
def test_row_without_a_match_gets_no_draft(tokens: list[int]) -> None:
    assert NgramDrafts(4).propose(rows_of(tokens)) == {}


@given(WORDS, st.lists(WORDS, max_size=8), st.integers(1, 5))
def test_growing_answer_is_looked_up_as_a_whole(
    prompt: list[int], pieces: list[list[int]], max_tokens: int
) -> None:
    """Steps bring one token or several; the index takes them in as they come."""
    [row] = rows_of(prompt)
    index = NgramIndex(row)
    for piece in pieces:
        row.generated += piece
        found = index.match(max_tokens).token_ids
        assert list(found) == looked_up(prompt + row.generated, max_tokens)


@pytest.mark.parametrize(("max_tokens", "expected"), [(1, 0), (2, 1), (3, 2), (50, 4)])
def test_draft_is_no_longer_than_what_the_row_may_still_say(max_tokens: int, expected: int) -> None:
    [row] = rows_of([1, 2, 3, 4, 5, 6, 1, 2, 3], max_tokens=max_tokens)
    assert len(NgramIndex(row).match(4).token_ids) == expected


def test_next_request_of_a_row_begins_with_nothing() -> None:
    source = NgramDrafts(4)
    [first], [second] = rows_of([1, 2, 3, 4, 1, 2]), rows_of([5, 6, 1, 2])
    assert source.propose([first]) != {}
    assert source.propose([second]) == {}


def test_rows_have_their_own_matches() -> None:
    drafts = NgramDrafts(2).propose(rows_of([1, 2, 3, 1, 2], [1, 2, 9, 1, 2], [1, 2, 3]))
    assert {row: list(draft.token_ids) for row, draft in drafts.items()} == {0: [3, 1], 1: [9, 1]}


def test_of_a_long_prompt_only_the_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "MAX_PROMPT_TOKENS", 4)
    [row] = rows_of([1, 2, 3, 9, 9, 1, 2])
    assert NgramIndex(row).match(4) is NO_MATCH


def test_likelihoods_fall_along_a_chain_and_follow_what_became_of_the_row() -> None:
    source, rows = NgramDrafts(4), rows_of([1, 2, 3, 4, 1, 2], [1, 2, 3, 4, 1, 2])

    def likelihoods() -> list[list[float]]:
        return [list(draft.likelihoods) for draft in source.propose(rows).values()]

    [before, _] = likelihoods()
    assert before == sorted(before, reverse=True)
    for _ in range(20):
        drafts = source.propose(rows)
        right_ones = [Drawn(token_id) for token_id in drafts[0].token_ids]
        source.learn([Outcome(rows[0], right_ones), Outcome(rows[1], [Drawn(9)])])
    [right, wrong] = likelihoods()
    assert right[-1] > 0.6 > before[-1] > wrong[0]


def test_row_is_indexed_once_while_its_request_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    indexed: list[UserRow] = []

    def index_of(row: UserRow) -> NgramIndex:
        indexed.append(row)
        return NgramIndex(row)

    monkeypatch.setattr(ngram, "NgramIndex", index_of)
    source, rows = NgramDrafts(4), rows_of([1, 2], [3, 4])
    for decoding in (rows[1:], rows, [], rows[1:]):
        source.propose(decoding)
    assert [row.index for row in indexed] == [1, 0, 1]
