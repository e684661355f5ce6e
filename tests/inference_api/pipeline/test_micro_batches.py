"""Parts of a step: together they are the step."""

from hypothesis import given
from hypothesis import strategies as st

from inference_api.pipeline.messages import PART_TOKENS
from inference_api.pipeline.ring_decoder import cut, num_parts
from inference_api.runner import MAX_TREE_TOKENS, RowStep
from tests.inference_api.engine.steps import ANY_DRAW


@st.composite
def steps(draw: st.DrawFn) -> list[RowStep]:
    rows = []
    for row in range(draw(st.integers(1, 12))):
        is_tree = draw(st.booleans())
        count = draw(st.integers(1, MAX_TREE_TOKENS if is_tree else 300))
        num_drawn = draw(st.integers(0, count))
        parents = (-1,) * count if is_tree else None
        tokens = range(1000 * row, 1000 * row + count)
        start = draw(st.integers(0, 50))
        rows.append(RowStep(row, start, tokens, [ANY_DRAW] * num_drawn, parents))
    return rows


@given(steps(), st.integers(1, 20))
def test_parts_are_the_step_in_its_order(rows: list[RowStep], num: int) -> None:
    parts = cut(rows, num)
    pieces = [piece for part in parts for piece in part]
    for row in rows:
        own = [piece for piece in pieces if piece.row == row.row]
        assert [token for piece in own for token in piece.token_ids] == list(row.token_ids)
        slots = [piece.start + at for piece in own for at in range(len(piece.token_ids))]
        assert slots == list(range(row.start, row.start + len(row.token_ids)))
        drawn = [at >= piece.num_undrawn for piece in own for at in range(len(piece.token_ids))]
        assert drawn == [at >= row.num_undrawn for at in range(len(row.token_ids))]
        assert row.parents is None or own == [row]
    assert [piece.row for piece in pieces] == sorted(piece.row for piece in pieces)
    for part in parts:
        assert 1 <= sum(len(piece.token_ids) for piece in part) <= PART_TOKENS


def test_more_tokens_are_cut_into_more_parts_and_few_into_few() -> None:
    assert [num_parts(tokens, 4, 32) for tokens in (1, 2, 8, 32, 128)] == [1, 1, 2, 4, 8]
