"""The layer by which a model guesses further tokens, by the kernels: multi-token prediction.

Gloeckle et al. 2024, arXiv 2404.19737; in this form DeepSeek-AI 2024, arXiv 2412.19437. What the
model's output head takes at a position, and the embedding of the token behind it, are normalised
and projected to the residual of one more layer. Of its results the same head makes the token after
that one. To guess on, they take the place of what the model made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from inference_api.engine.cpu.decoder import KernelDecoder
from inference_api.engine.paged_cache import PagedCache
from inference_api.engine.step_decoder import Outputs
from inference_api.kernels.interface import Floats
from inference_api.kernels.packing import PANEL
from inference_api.loading.config import ModelConfig
from inference_api.loading.weights import Parameters
from inference_api.request import SamplingParams
from inference_api.runner import Draw, Guess, Hidden, RowStep, RowToken

# A guess is among the first tokens of the vocabulary: nearly all of its time would be the output
# head's. Tokenizers have their tokens in the order in which they were found, the frequent ones
# first; a quarter of them loses few guesses (Zhao et al. 2025, arXiv 2502.14856).
GUESSED_SHARE, LEAST_GUESSED = 4, 32_768
MOST_UNREAD = 32  # tokens of a row that wait to be read together
DRAW = Draw(SamplingParams(), (0,), ())  # asks for logits; nothing is drawn by it


@dataclass(slots=True)
class _Unread:
    """The last tokens of a row, from position `start` on, and their states: [tokens, hidden size].

    A state is read with the token behind its own. `tried`: the states of the row's last step, until
    it is known which of its guesses are kept.
    """

    start: int
    token_ids: list[int] = field(default_factory=list)
    states: list[Floats] = field(default_factory=list)
    tried: Floats | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)

    def add(self, token_ids: Sequence[int], states: Floats) -> None:
        self.token_ids += token_ids
        self.states.append(states)


class MtpLayer:
    """`DraftLayer` of a model that the kernels decode.

    The state at position i is read to slot i, in the place that this layer has in the row's pages.
    So whoever takes over pages has what was read of them. Not so the last slot before what a row
    computes itself, whose state it does not know: it has what another row's next token made of it,
    or nothing. Whatever is missing costs guesses, and changes no text.
    """

    def __init__(
        self, config: ModelConfig, parameters: Parameters, cache: PagedCache, max_seq_len: int
    ) -> None:
        """All are the model's."""
        num_guessed = max(config.vocab_size // GUESSED_SHARE // PANEL * PANEL, LEAST_GUESSED)
        shape = replace(config.mtp, vocab_size=min(num_guessed, config.vocab_size))
        own = parameters.of_mtp(shape.vocab_size)
        self._decoder = KernelDecoder(shape, own, cache, max_seq_len, config.num_layers)
        self._kernels = own.packing.kernels
        self._projection = own.packed["projection.weight"]
        self._norms = [own.tensors[f"{name}_norm.weight"] for name in ("embedding", "hidden")]
        self._eps = np.float32(config.norm_eps)
        self._unread: dict[int, _Unread] = {}  # keys are rows

    def follow(self, steps: Sequence[RowStep], hidden: Sequence[Hidden | None]) -> None:
        """The model has made `hidden` of these. A row's states are read once they are more than
        MOST_UNREAD, so those of a prompt at once."""
        reads: list[RowStep] = []
        read_states: list[Floats] = []
        for step, states in zip(steps, hidden, strict=True):
            assert states is not None
            unread = self._unread.get(step.row)
            if unread is None or unread.end != step.start:
                unread = _Unread(step.start)
            num_certain = len(step.token_ids) - step.num_guesses
            unread.add(step.token_ids[:num_certain], states[:num_certain].copy())
            if len(unread.token_ids) > MOST_UNREAD:
                whole = np.concatenate(unread.states)
                reads.append(RowStep(step.row, unread.start, unread.token_ids[1:]))
                read_states.append(whole[:-1])
                unread = _Unread(unread.end - 1, unread.token_ids[-1:], [whole[-1:].copy()])
            unread.tried = states if step.num_guesses else None
            self._unread[step.row] = unread
        if reads:
            self._run(reads, read_states)

    def keep(self, step: RowStep, accepted: Sequence[int]) -> None:
        """See `ModelRunner`."""
        unread = self._unread.get(step.row)
        if unread is not None and unread.tried is not None:
            kept = list(accepted[len(step.token_ids) - step.num_guesses :])
            unread.add([step.token_ids[token] for token in kept], unread.tried[kept])
            unread.tried = None

    def forget(self, row: int) -> None:
        """Another request begins in a row."""
        self._unread.pop(row, None)

    def knows(self, row: int, position: int) -> bool:
        unread = self._unread.get(row)
        return unread is not None and unread.tried is None and unread.end == position

    def guess(self, tokens: Sequence[RowToken]) -> list[Guess]:
        logits = self.logits_behind(tokens)
        best = logits.argmax(axis=1)
        logits -= np.take_along_axis(logits, best[:, np.newaxis], axis=1)
        np.exp(logits, out=logits)
        probabilities = 1 / logits.sum(axis=1)
        return list(map(Guess, best.tolist(), probabilities.tolist()))

    def logits_behind(self, tokens: Sequence[RowToken]) -> Floats:
        """What guesses are made of, [tokens, guessed ones], in memory that the next call writes
        again."""
        reads: list[RowStep] = []
        states: list[Floats] = []
        for row, _, token_id in tokens:
            unread = self._unread[row]
            following = [*unread.token_ids[1:], token_id]
            reads.append(RowStep(row, unread.start, following, (DRAW,), wants_hidden=True))
            states += unread.states
        logits, hidden = self._run(reads, states)
        for (row, position, token_id), made in zip(tokens, hidden, strict=True):
            assert made is not None
            self._unread[row] = _Unread(position, [token_id], [made[-1:]])
        return logits

    def _run(self, rows: Sequence[RowStep], states: Sequence[Floats]) -> Outputs:
        """Read states with the tokens behind them, those of `rows`."""
        token_ids = [token_id for each in rows for token_id in each.token_ids]
        sources = self._decoder.embedded(token_ids), np.concatenate(states)
        parts = [self._normed(*each) for each in zip(sources, self._norms, strict=True)]
        projected = self._kernels.linear(np.concatenate(parts, axis=1), self._projection)
        return self._decoder.forward(rows, projected)

    def _normed(self, rows: Floats, weight: Floats) -> Floats:
        squares = np.square(rows).mean(axis=1, keepdims=True)
        normed: Floats = rows / np.sqrt(squares + self._eps) * weight
        return normed
