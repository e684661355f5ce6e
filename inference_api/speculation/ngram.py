"""Prompt lookup: drafts the tokens that followed an earlier occurrence of the row's last tokens.

It needs no model and no training. It helps if an answer copies from its prompt or repeats itself.
The idea is Saxena's prompt lookup decoding (2023), known from transformers and vLLM.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise, repeat
from operator import mul
from typing import NamedTuple

from inference_api.core.drafts import Outcome
from inference_api.core.rows import Draft, UserRow
from inference_api.speculation.calibration import Calibration, ProposedDraft

MAX_PROMPT_TOKENS = 16_384  # the index has only a prompt's last tokens, about 350 bytes for each
FIRST_SHARE = 0.5  # assumed share of right guesses in a new row
SHARE_RATE = 0.1  # learning rate of the share of a row's guesses that are right

Ngram = tuple[int, ...]


class Match(NamedTuple):
    """The tokens after an earlier occurrence of the last `size` tokens."""

    token_ids: Sequence[int] = ()
    size: int = 0


NO_MATCH = Match()


class NgramDrafts:
    """A `DraftSource` that gives each row with a match a chain of up to `max_tokens` guesses."""

    name = "ngram"
    wants_hidden = False

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._indices: dict[int, NgramIndex] = {}  # keyed by row index; only rows that decode
        # The kinds are first and later guesses after pairs, then after triples.
        self._calibration = Calibration(num_kinds=4)

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        self._indices = {row.index: self._index_of(row) or NgramIndex(row) for row in rows}
        matches = [(each, each.match(self._max_tokens)) for each in self._indices.values()]
        return self._calibration.drafts(
            self._chain(index, match) for index, match in matches if match.size
        )

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        for row, is_right in self._calibration.learn(outcomes):
            if (index := self._index_of(row)) is not None:
                index.share += SHARE_RATE * (is_right - index.share)

    def _index_of(self, row: UserRow) -> "NgramIndex | None":
        index = self._indices.get(row.index)
        return index if index is not None and index.row is row else None

    def _chain(self, index: "NgramIndex", match: Match) -> ProposedDraft:
        kind, num_later = 2 * (match.size - 2), len(match.token_ids) - 1
        (first, likely), (later, likely_later) = (
            self._calibration.calibrated(each, index.share) for each in (kind, kind + 1)
        )
        likelihoods = accumulate(repeat(likely_later, num_later), mul, initial=likely)
        draft = Draft(match.token_ids, None, [*likelihoods])
        bins, shares = [first, *[later] * num_later], [index.share] * (1 + num_later)
        return ProposedDraft(index.row, draft, bins, shares)


class NgramIndex:
    """The pairs and triples of a row's tokens, with the index of the token after their last
    occurrence. `share` is the recent share of right guesses."""

    def __init__(self, row: UserRow) -> None:
        self.row = row
        self.share = FIRST_SHARE
        self._tokens = tokens = list(row.request.prompt_tokens[-MAX_PROMPT_TOKENS:])
        self._num_generated = 0  # how many of the answer's tokens are in `_tokens`
        count = len(tokens)
        pairs = pairwise(tokens)
        triples = zip(tokens, tokens[1:], tokens[2:], strict=False)
        self._after_pair: dict[Ngram, int] = dict(zip(pairs, range(2, count), strict=False))
        self._after_triple: dict[Ngram, int] = dict(zip(triples, range(3, count), strict=False))
        self._last_pair: Ngram = tuple(tokens[-2:])
        self._last_triple: Ngram = tuple(tokens[-3:])

    def match(self, max_tokens: int) -> Match:
        """Returns the tokens after the latest earlier occurrence of the last triple, else pair."""
        row = self.row
        if len(row.generated) > self._num_generated:
            self._extend()
        at, size = self._after_pair.get(self._last_pair), 2
        room = min(max_tokens, row.token_limit - len(row.generated) - 1)
        if at is None or room < 1:
            return NO_MATCH
        if (after_triple := self._after_triple.get(self._last_triple)) is not None:
            at, size = after_triple, 3
        following = self._tokens[at : at + room]
        repeated = following * -(-room // len(following))  # guesses that the text repeats itself
        return Match(repeated[:room], size)

    def _extend(self) -> None:
        """Add the tokens that the row has generated since the last call."""
        tokens, generated = self._tokens, self.row.generated
        for token_id in generated[self._num_generated :]:
            self._after_pair[self._last_pair] = len(tokens)
            self._after_triple[self._last_triple] = len(tokens)
            tokens.append(token_id)
            self._last_triple = (*self._last_pair, token_id)
            self._last_pair = self._last_triple[-2:]
        self._num_generated = len(generated)
