"""The tree has the likeliest paths, and heads that are often wrong are believed less."""

import random
from collections.abc import Sequence
from math import prod

import numpy as np
import pytest

from inference_api.core.drafts import Outcome
from inference_api.engine.medusa_tree import default_paths
from inference_api.runner import Drawn, HeadGuesses, Hidden
from inference_api.speculation.medusa import MedusaDrafts
from tests.inference_api.speculation.rows import rows_of

HEADS = 3
PATHS = default_paths(HEADS)
RANKS = 1 + max(map(max, PATHS))


class RandomHeads:
    """Whose probabilities are random, or always the same."""

    paths: Sequence[tuple[int, ...]] = PATHS

    def __init__(self, probability: float | None = None) -> None:
        self._random = np.random.default_rng(3)
        self._probability = probability

    def guess(self, hidden: Sequence[Hidden]) -> HeadGuesses:
        shape = len(hidden), HEADS, RANKS
        drawn = -np.sort(-self._random.random(shape) * 0.6, axis=2)
        if self._probability is not None:
            drawn = np.full(shape, self._probability)
        tokens = np.arange(100, 100 + HEADS * RANKS).reshape(1, HEADS, RANKS)
        self.last = HeadGuesses(np.tile(tokens, (len(hidden), 1, 1)), drawn.astype(np.float32))
        return self.last


def test_tree_has_the_likeliest_of_all_paths() -> None:
    heads = RandomHeads()
    for max_tokens in (1, 2, 8, 32):
        source = MedusaDrafts(heads, max_tokens)
        rows = rows_of([1], [2], [3])
        source.learn([Outcome(row, [Drawn(1)], np.zeros(4, np.float32)) for row in rows])
        drafts = source.propose(rows)
        for row in rows:
            own = heads.last.probabilities[row.index]
            of_paths = [prod(own[at, rank] for at, rank in enumerate(path)) for path in PATHS]
            draft = drafts[row.index]
            best = sorted(of_paths, reverse=True)[:max_tokens]
            assert draft.likelihoods == pytest.approx(best, rel=1e-4)
            assert draft.parents is not None
            found: list[tuple[int, ...]] = []
            for token_id, parent in zip(draft.token_ids, draft.parents, strict=True):
                found.append((*(found[parent] if parent >= 0 else ()), (token_id - 100) % RANKS))
            assert set(found) <= set(PATHS)


def test_row_without_a_state_gets_nothing() -> None:
    source = MedusaDrafts(RandomHeads(), 8)
    first, second = rows_of([1], [2])
    source.learn([Outcome(first, [Drawn(1)], np.zeros(4, np.float32))])
    assert source.propose([first, second]).keys() == {0}
    [other] = rows_of([1])
    assert source.propose([other]) == {}


@pytest.mark.parametrize("share", [0.1, 0.8])
def test_likelihoods_become_what_guesses_turn_out_to_be(share: float) -> None:
    source = MedusaDrafts(RandomHeads(0.4), 1)
    [row] = rows_of([1])
    source.learn([Outcome(row, [Drawn(1)], np.zeros(4, np.float32))])
    chosen = random.Random(2)
    likelihood = 0.0
    for _ in range(1500):
        draft = source.propose([row])[0]
        likelihood = draft.likelihoods[0]
        drawn = draft.token_ids[0] if chosen.random() < share else 1
        source.learn([Outcome(row, [Drawn(drawn)], np.zeros(4, np.float32))])
    assert likelihood == pytest.approx(share, abs=0.1)


def test_probabilities_that_are_no_numbers_are_unlikely() -> None:
    source = MedusaDrafts(RandomHeads(float("nan")), 4)
    [row] = rows_of([1])
    source.learn([Outcome(row, [Drawn(1)], np.zeros(4, np.float32))])
    assert max(source.propose([row])[0].likelihoods) < 1e-6
