"""Corrects the probabilities of a draft source's guesses by how often such guesses were right."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import log2
from typing import NamedTuple

from inference_api.core.drafts import Outcome
from inference_api.core.rows import Draft, UserRow
from inference_api.runner import Drawn

PRIOR_TRIALS = 10.0  # weight of the stated probabilities, in numbers of observed guesses
MEMORY = 0.998  # a new guess multiplies the weights of older ones in its bin by this
NUM_BINS = 8  # bins of probabilities: above 1/2, above 1/4 and so on
CERTAIN = 0.98  # upper bound of a likelihood
LEAST = 1e-9  # lower bound of a likelihood


class ProposedDraft(NamedTuple):
    """A row's draft. `bins` has each guess's kind and bin as one number."""

    row: UserRow
    draft: Draft
    bins: Sequence[int]
    probabilities: Sequence[float]


class Calibration:
    """Counts, for each kind of guess and bin of probability, how many guesses were right and how
    many were expected to be. Decode thread only. It uses plain numbers, because steps have few
    guesses and arrays have more overhead."""

    def __init__(self, num_kinds: int) -> None:
        self._hits = [PRIOR_TRIALS] * num_kinds * NUM_BINS
        self._expected = [PRIOR_TRIALS] * num_kinds * NUM_BINS
        self._proposed: Mapping[int, ProposedDraft] = {}  # drafts for the next step, by row index

    def calibrated(self, kind: int, probability: float) -> tuple[int, float]:
        """Returns a guess's kind and bin as one number, and its corrected likelihood if the guess
        before it is right."""
        likely = max(LEAST, probability)  # NaN becomes LEAST
        each = NUM_BINS * kind + min(int(-log2(likely)), NUM_BINS - 1)
        return each, min(likely * self._hits[each] / self._expected[each], CERTAIN)

    def drafts(self, proposed: Iterable[ProposedDraft]) -> Mapping[int, Draft]:
        """Returns the drafts by row index, and remembers them for `learn`."""
        self._proposed = {each.row.index: each for each in proposed}
        return {index: each.draft for index, each in self._proposed.items()}

    def learn(self, outcomes: Sequence[Outcome]) -> list[tuple[UserRow, bool]]:
        """Learn from every guess that the drawn tokens prove right or wrong, even if it was not
        tried. Returns for each of them its row, and whether it was right."""
        proposed, self._proposed = self._proposed, {}
        judged = []
        for row, drawn, _ in outcomes:
            proposal = proposed.get(row.index)
            if proposal is not None and proposal.row is row:
                for at, is_right in _judged(proposal.draft, drawn):
                    each = proposal.bins[at]
                    expected = max(LEAST, proposal.probabilities[at])
                    self._hits[each] = MEMORY * self._hits[each] + is_right
                    self._expected[each] = MEMORY * self._expected[each] + expected
                    judged.append((row, is_right))
        return judged


def _judged(draft: Draft, drawn: Sequence[Drawn]) -> Iterator[tuple[int, bool]]:
    """Yields the index of each guess that can be judged, and whether it was right. These are the
    guesses whose ancestors are all right, as far as tokens were drawn."""
    depths = {-1: 0}  # for each right guess, the index of the next token in `drawn`
    for at, token_id in enumerate(draft.token_ids):
        depth = depths.get(at - 1 if draft.parents is None else draft.parents[at])
        if depth is not None and depth < len(drawn):
            is_right = token_id == drawn[depth].token_id
            if is_right:
                depths[at] = depth + 1
            yield at, is_right
