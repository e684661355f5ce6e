"""Corrects a source's own probabilities by how often its guesses were accepted."""

from collections.abc import Sequence
from math import log2
from typing import NamedTuple

from inference_api.core.drafts import Outcome
from inference_api.core.rows import Draft

PRIOR_TRIALS = 10.0  # weight of the probabilities against observed guesses
MEMORY = 0.998  # weight of a guess once there is a newer one in its bin
NUM_BINS = 8  # bins of probabilities: over a half, a quarter and so on
CERTAIN = 0.98  # no guess is likelier,
LEAST = 1e-9  # nor less likely


class Proposed(NamedTuple):
    """A draft; for each guess its kind and bin as one number, and the source's probability."""

    draft: Draft
    bins: Sequence[int]
    probabilities: Sequence[float]


class Calibration:
    """For guesses of one kind and about one probability: how many were right, and how many were
    expected to be. Decode thread only.

    It uses plain numbers, because a step has few guesses and arrays have more overhead.
    """

    def __init__(self, num_kinds: int) -> None:
        self._hits = [PRIOR_TRIALS] * num_kinds * NUM_BINS
        self._expected = [PRIOR_TRIALS] * num_kinds * NUM_BINS

    def of(self, kind: int, probability: float) -> tuple[int, float]:
        """A guess's kind and bin of probability as one number, and its corrected likelihood, given
        that the guess before it is right."""
        likely = probability if probability > LEAST else LEAST  # also for NaN
        each = NUM_BINS * kind + min(int(-log2(likely)), NUM_BINS - 1)
        return each, min(likely * self._hits[each] / self._expected[each], CERTAIN)

    def learn(self, proposed: Proposed, outcome: Outcome) -> None:
        """Learn from the guesses whose predecessors were right whether they were right, too."""
        parents, right = proposed.draft.parents, {-1, *outcome.accepted}
        for at in outcome.tried:
            parent = at - 1 if parents is None else parents[at]
            if parent in right:
                each = proposed.bins[at]
                self._hits[each] = MEMORY * self._hits[each] + (at in right)
                self._expected[each] = MEMORY * self._expected[each] + proposed.probabilities[at]
