"""The decode loops of `make bench-auto` really decode."""

from lab.benches.engine.auto import AGAIN, AUTO, OFF, line, taken_turns
from lab.benches.table.models import TABLE_MODELS


def test_every_loop_has_its_turns_and_a_step_brings_one_token_where_none_drafts() -> None:
    """Whether `auto` drafts, too, is for measured time to decide."""
    model = TABLE_MODELS["hearth-tiny"]
    turns = taken_turns(users=1, rounds=2, steps=200, model=model, quantization="int8")
    assert list(turns) == [OFF, AGAIN, AUTO]
    assert all(len(own) == 2 for own in turns.values())
    assert [turn.tokens_per_step for turn in turns[OFF] + turns[AGAIN]] == [1.0] * 4
    assert min(turn.tokens_per_step for turn in turns[AUTO]) >= 1.0
    assert line(1, AUTO, turns[AUTO], turns[OFF]).startswith("| 1 | auto | ")
