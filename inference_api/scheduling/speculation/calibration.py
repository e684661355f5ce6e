"""What a source's own probabilities are worth, by what became of its guesses."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_api.scheduling.rows import Draft
from inference_api.scheduling.speculation.drafts import Outcome

PRIOR_TRIALS = 10.0  # what the probabilities weigh beside what became of guesses
MEMORY = 0.998  # what a guess counts when there is another like it
NUM_BINS = 8  # of probabilities: over a half, a quarter and so on
CERTAIN = 0.98  # no guess is likelier,
LEAST = 1e-9  # nor less likely

Numbers = NDArray[np.float32]
Integers = NDArray[np.int64]


class Proposed(NamedTuple):
    """A draft; for each guess its kind and bin as one number, and the source's probability."""

    draft: Draft
    bins: Sequence[int]
    probabilities: Sequence[float]


class Calibration:
    """Of guesses of one kind and about one probability: how many were right, and were expected to
    be? Decode thread only."""

    def __init__(self, num_kinds: int) -> None:
        self._hits = np.full(num_kinds * NUM_BINS, PRIOR_TRIALS)
        self._expected = np.full(num_kinds * NUM_BINS, PRIOR_TRIALS)

    def bins(self, kinds: Integers, probabilities: Numbers) -> Integers:
        """For each guess its kind and the bin of its probability, as one number."""
        likely = np.fmax(probabilities, LEAST)  # also of what is no number
        within = np.minimum(-np.log2(likely), NUM_BINS - 1).astype(np.int64)
        bins: Integers = NUM_BINS * kinds + within
        return bins

    def likelihoods(self, bins: Integers, probabilities: Numbers) -> Numbers:
        """How likely each guess is, after a right one."""
        worth = (self._hits / self._expected)[bins]
        likelihoods: Numbers = np.minimum(np.fmax(probabilities, LEAST) * worth, CERTAIN)
        return likelihoods

    def learn(self, proposed: Proposed, outcome: Outcome) -> None:
        """Of the guesses whose turn came, because what they follow was right: were they?"""
        parents, right = proposed.draft.parents, {-1, *outcome.accepted}
        for at in outcome.tried:
            parent = at - 1 if parents is None else parents[at]
            if parent in right:
                each = proposed.bins[at]
                self._hits[each] *= MEMORY
                self._hits[each] += at in right
                self._expected[each] *= MEMORY
                self._expected[each] += proposed.probabilities[at]
