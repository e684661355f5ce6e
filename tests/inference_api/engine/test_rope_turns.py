"""Turns are made as positions are reached, and are what they would be at once."""

import numpy as np
import pytest

from inference_api.engine.rope import BLOCK_TOKENS, RopeTurns
from inference_api.loading.checkpoint import load_config
from tests.inference_api.engine.tiny_models import folder_of

MAX_SEQ_LEN = 3 * BLOCK_TOKENS + 5


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3", "ministral3"])
def test_turns_do_not_depend_on_when_they_were_made(name: str) -> None:
    config = load_config(folder_of(name))
    at_once, as_reached = (RopeTurns(config, MAX_SEQ_LEN) for _ in range(2))
    at_once.reach(MAX_SEQ_LEN)
    for num_positions in (1, 10, BLOCK_TOKENS, BLOCK_TOKENS + 1, MAX_SEQ_LEN - 1, MAX_SEQ_LEN):
        as_reached.reach(num_positions)
        for one, other in zip(at_once.layers, as_reached.layers, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                for made, expected in zip(other, one, strict=True):
                    assert (made is None) == (expected is None)
                    if made is not None and expected is not None:
                        assert np.array_equal(made[:num_positions], expected[:num_positions])
    reached = RopeTurns(config, MAX_SEQ_LEN)
    reached.reach(1)
    for turns in filter(None, reached.layers):
        assert not turns.cosines[BLOCK_TOKENS:].any()
