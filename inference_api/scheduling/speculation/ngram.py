"""Prompt lookup: what followed the row's last few tokens when they came before.

No model and no training: wins where an answer copies from its prompt or repeats itself. The idea is
that of Saxena's prompt lookup decoding (2023), known from transformers and vLLM.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from inference_api.scheduling.rows import NO_DRAFT, Draft, UserRow
from inference_api.scheduling.speculation.drafts import RowStates

MAX_PROMPT_TOKENS = 16_384  # the last ones of a prompt; each takes about 350 bytes

Ngram = tuple[int, ...]


class NgramDrafts:
    """A `DraftSource`: of each row with a match a chain of up to `max_tokens`."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._indexes = RowStates(NgramIndex)

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        drafts = {}
        for row, index in zip(rows, self._indexes.of(rows), strict=True):
            draft = index.draft(self._max_tokens)
            if draft.token_ids:
                drafts[row.index] = draft
        return drafts


class NgramIndex:
    """The pairs and triples of one row's tokens, and where each was last followed by a token."""

    def __init__(self, row: UserRow) -> None:
        self._row = row
        self._tokens = tokens = list(row.request.prompt_tokens[-MAX_PROMPT_TOKENS:])
        self._num_generated = 0  # of the answer's tokens, those that are in `_tokens`
        count = len(tokens)
        pairs = pairwise(tokens)
        triples = zip(tokens, tokens[1:], tokens[2:], strict=False)
        self._after_pair: dict[Ngram, int] = dict(zip(pairs, range(2, count), strict=False))
        self._after_triple: dict[Ngram, int] = dict(zip(triples, range(3, count), strict=False))
        self._last_pair: Ngram = tuple(tokens[-2:])
        self._last_triple: Ngram = tuple(tokens[-3:])

    def draft(self, max_tokens: int) -> Draft:
        """What came after the latest occurrence of the triple, or else the pair, that is last."""
        row = self._row
        if len(row.generated) > self._num_generated:
            self._extend()
        at, strength = self._after_pair.get(self._last_pair), 2
        room = min(max_tokens, row.token_limit - len(row.generated) - 1)
        if at is None or room < 1:
            return NO_DRAFT
        if (after_triple := self._after_triple.get(self._last_triple)) is not None:
            at, strength = after_triple, 3
        following = self._tokens[at : at + room]
        repeated = following * -(-room // len(following))  # as loops go on
        return Draft(repeated[:room], strength=strength)

    def _extend(self) -> None:
        """Take in what the row has said since."""
        tokens, generated = self._tokens, self._row.generated
        for token_id in generated[self._num_generated :]:
            self._after_pair[self._last_pair] = len(tokens)
            self._after_triple[self._last_triple] = len(tokens)
            tokens.append(token_id)
            self._last_triple = (*self._last_pair, token_id)
            self._last_pair = self._last_triple[-2:]
        self._num_generated = len(generated)
