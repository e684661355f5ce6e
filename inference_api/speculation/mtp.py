"""Drafts by multi-token prediction: a layer that was trained with the model guesses token by token.

Gloeckle et al. 2024, arXiv 2404.19737. The layer is trained for the first guess. Further guesses
start from its own outputs and are right less often.
"""

from collections.abc import Mapping, Sequence

from inference_api.core.rows import Draft, UserRow
from inference_api.runner import DraftLayer, RowToken
from inference_api.speculation.chains import Chain, ChainDrafts

NUM_DEPTHS = 4  # depths of guesses that are calibrated separately


class MtpDrafts(ChainDrafts):
    """A `DraftSource` that gives a greedy chain to each row after whose last token it can guess."""

    name = "mtp"
    wants_hidden = False

    def __init__(
        self, layer: DraftLayer, max_tokens: int, vocab_size: int, name: str = name
    ) -> None:
        super().__init__(vocab_size, NUM_DEPTHS)
        self.name = name
        self._layer = layer
        self._max_tokens = max_tokens

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        known_rows = [row for row in rows if self._layer.knows(row.index, row.num_cached)]
        chains = [Chain(row, room) for row in known_rows if (room := self._room(row)) > 0]
        growing = chains
        while growing:
            guesses = self._layer.guess([_last_token(chain) for chain in growing])
            growing = self.extend(growing, guesses)
        return self.drafts_of(chains)

    def _room(self, row: UserRow) -> int:
        """Returns how many tokens may be guessed; the row needs pages for the layer's inputs."""
        paged_tokens = row.room_tokens - row.num_cached + 1
        return min(self._max_tokens, row.token_limit - len(row.generated) - 1, paged_tokens)


def _last_token(chain: Chain) -> RowToken:
    """Returns the last token of a chain, which its next guess follows."""
    row, guessed = chain.row, chain.token_ids
    token_id = guessed[-1] if guessed else row.last_token_id
    return RowToken(row.index, row.num_cached + len(guessed), token_id)
