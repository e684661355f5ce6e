"""What ranks tell each other, and what none of them would."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api.pipeline.messages import BadMessage, read_step, step_numbers
from inference_api.runner import RowStep
from tests.inference_api.engine.steps import ANY_DRAW

ROWS, CONTEXT = 4, 64


def test_step_arrives_as_it_was_but_for_ids_and_draws() -> None:
    sent = [
        RowStep(3, 10, [7, 8, 9]),
        RowStep(0, 0, [1, 2, 3, 4], [ANY_DRAW] * 3, (-1, 0, 1, 1)),
        RowStep(1, 5, [1, 2], [ANY_DRAW], wants_hidden=True),
    ]
    rows, returned = read_step(step_numbers(sent), ROWS, CONTEXT)
    assert [(each.row, each.start, len(each.token_ids), each.parents) for each in rows] == [
        (3, 10, 3, None),
        (0, 0, 4, [-1, 0, 1, 1]),
        (1, 5, 2, None),
    ]
    assert returned == [4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    "numbers",
    [
        [],
        [0, 0, 1, 1],
        [4, 0, 1, 1, 0],
        [-1, 0, 1, 1, 0],
        [0, -1, 1, 1, 0],
        [0, 0, 0, 0, 0],
        [0, 60, 5, 5, 0],
        [0, 2**62, 2**62, 0, 0],
        [0, 0, 2, 3, 0],
        [0, 0, 2, -1, 0],
        [0, 0, 2, 0, 1, -1],
        [0, 0, 2, 0, 1, -1, 1],
        [0, 0, 2, 0, 1, -2, 0],
    ],
    ids=str,
)
def test_numbers_that_no_step_has_are_refused(numbers: list[int]) -> None:
    with pytest.raises(BadMessage):
        read_step(numbers, ROWS, CONTEXT)


@given(st.lists(st.integers(-3, 70) | st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_whatever_is_read_stays_within_the_cache(numbers: list[int]) -> None:
    try:
        rows, returned = read_step(numbers, ROWS, CONTEXT)
    except BadMessage:
        return
    for each in rows:
        assert 0 <= each.row < ROWS
        assert 0 <= each.start <= each.start + len(each.token_ids) <= CONTEXT
        assert all(parent < at for at, parent in enumerate(each.parents or ()))
    num_tokens = sum(len(each.token_ids) for each in rows)
    assert all(0 <= token < num_tokens for token in returned)
