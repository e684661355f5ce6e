"""Multi-token prediction on the CPU: a layer with which a model guesses further tokens.

Gloeckle et al. 2024, arXiv 2404.19737; in this form DeepSeek-AI 2024, arXiv 2412.19437. The
layer's input at a position is a projection of two normalised vectors: the model's final hidden
state there, and the embedding of the next token. The model's output head turns the layer's result
into a guess of the token after that one. For a further guess, the result takes the place of the
model's hidden state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from inference_api.engine.cpu.decoder import KernelDecoder, Outputs
from inference_api.engine.paged_cache import PagedCache
from inference_api.kernels.interface import Floats
from inference_api.kernels.packing import PANEL
from inference_api.loading.config import ModelConfig
from inference_api.loading.weights import Parameters
from inference_api.request import SamplingParams
from inference_api.runner import Draw, Guess, Hidden, RowStep, RowToken

# Guesses are limited to the first tokens of the vocabulary, because the output head would take
# nearly all of their time. Tokenizers list tokens in the order of their training, frequent ones
# first, so a quarter of them loses few guesses (Zhao et al. 2025, arXiv 2502.14856).
GUESSED_SHARE, MIN_GUESSED = 4, 32_768
MAX_UNREAD = 32  # a row's tokens that may wait to be processed together
DRAW = Draw(SamplingParams(), (0,), ())  # requests logits; nothing is drawn


@dataclass(slots=True)
class _Unread:
    """A row's last tokens from position `start` on, and their states [tokens, hidden size], which
    this layer has not processed yet.

    A state is processed together with the token after it. `tried` has the states of the row's last
    step until `keep` says which of its guesses were accepted.
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
    """`DraftLayer` for a model on the CPU.

    The state at position i is written to slot i of this layer's part of the row's pages, so a row
    that reuses pages gets it, too. The exception is the last slot before the row's own tokens: its
    state depends on the next token, so it is another row's, or empty. A missing state makes guesses
    worse, but changes no text.
    """

    def __init__(
        self, config: ModelConfig, parameters: Parameters, cache: PagedCache, max_seq_len: int
    ) -> None:
        """All arguments are the model's own."""
        num_guessed = max(config.vocab_size // GUESSED_SHARE // PANEL * PANEL, MIN_GUESSED)
        shape = replace(config.mtp, vocab_size=min(num_guessed, config.vocab_size))
        layer = parameters.of_mtp(shape.vocab_size)
        places = {0: cache.places[config.num_layers]}
        self._decoder = KernelDecoder(shape, layer, cache, max_seq_len, places)
        self._kernels = layer.packing.kernels
        self._projection = layer.packed["projection.weight"]
        self._norms = [layer.tensors[f"{name}_norm.weight"] for name in ("embedding", "hidden")]
        self._eps = np.float32(config.norm_eps)
        self._unread: dict[int, _Unread] = {}  # keys are rows

    def follow(self, steps: Sequence[RowStep], hidden: Sequence[Hidden | None]) -> None:
        """Take the hidden states of a model's step. A row's states are processed once there are
        more than MAX_UNREAD, so the states of a prompt are processed together."""
        reads: list[RowStep] = []
        read_states: list[Floats] = []
        for step, states in zip(steps, hidden, strict=True):
            assert states is not None
            unread = self._unread.get(step.row)
            if unread is None or unread.end != step.start:
                unread = _Unread(step.start)
            num_certain = len(step.token_ids) - step.num_guesses
            unread.add(step.token_ids[:num_certain], states[:num_certain].copy())
            if len(unread.token_ids) > MAX_UNREAD:
                all_states = np.concatenate(unread.states)
                reads.append(RowStep(step.row, unread.start, unread.token_ids[1:]))
                read_states.append(all_states[:-1])
                unread = _Unread(unread.end - 1, unread.token_ids[-1:], [all_states[-1:].copy()])
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
        """Forget a row's states, because another request begins in it."""
        self._unread.pop(row, None)

    def knows(self, row: int, position: int) -> bool:
        unread = self._unread.get(row)
        return unread is not None and unread.tried is None and unread.end == position

    def guess(self, tokens: Sequence[RowToken]) -> list[Guess]:
        return likeliest(self.logits_behind(tokens))

    def logits_behind(self, tokens: Sequence[RowToken]) -> Floats:
        """Returns the logits of guesses, [tokens, guessed vocabulary]. The next call overwrites
        them."""
        reads: list[RowStep] = []
        states: list[Floats] = []
        for row, _, token_id in tokens:
            unread = self._unread[row]
            following = [*unread.token_ids[1:], token_id]
            reads.append(RowStep(row, unread.start, following, (DRAW,), wants_hidden=True))
            states += unread.states
        logits, hidden = self._run(reads, states)
        for (row, position, token_id), state in zip(tokens, hidden, strict=True):
            assert state is not None
            self._unread[row] = _Unread(position, [token_id], [state[-1:]])
        return logits

    def _run(self, rows: Sequence[RowStep], states: Sequence[Floats]) -> Outputs:
        """Process `states`, each together with the token after it, which `rows` have."""
        token_ids = [token_id for each in rows for token_id in each.token_ids]
        sources = self._decoder.embedded(token_ids), np.concatenate(states)
        parts = [self._normed(*each) for each in zip(sources, self._norms, strict=True)]
        projected = self._kernels.linear(np.concatenate(parts, axis=1), self._projection)
        return self._decoder.forward(rows, projected)

    def _normed(self, rows: Floats, weight: Floats) -> Floats:
        squares = np.square(rows).mean(axis=1, keepdims=True)
        normed: Floats = rows / np.sqrt(squares + self._eps) * weight
        return normed


def likeliest(logits: Floats) -> list[Guess]:
    """Returns each row's likeliest token. Overwrites the logits [rows, vocabulary]."""
    best = logits.argmax(axis=1)
    logits -= np.take_along_axis(logits, best[:, np.newaxis], axis=1)
    np.exp(logits, out=logits)
    probabilities = 1 / logits.sum(axis=1)
    return list(map(Guess, best.tolist(), probabilities.tolist()))
