"""Drafting on the CPU by an assistant: narrow layers that read the model's own keys and values.

Gemma 4's assistants have checkpoints of their own (`gemma4_assistant` in transformers). The input
is a projection of the embedding of a row's last token, and of the model's final hidden state before
it. For a further guess, the guess and a projection of the assistant's own result take their places.
All guesses are made at the position of the row's last token, which has no keys and values yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from inference_api.engine.cpu.decoder import KernelDecoder
from inference_api.engine.cpu.mtp import DRAW, likeliest
from inference_api.engine.paged_cache import PagedCache
from inference_api.errors import StartupError
from inference_api.kernels.interface import Floats
from inference_api.loading.config import ModelConfig
from inference_api.loading.drafting import assistant_config, kv_layers
from inference_api.loading.files import read_headers, shape_faults, weight_files
from inference_api.loading.layout import EMBEDDING, HEAD
from inference_api.loading.weights import Parameters
from inference_api.runner import Guess, Hidden, RowStep, RowToken


def read_assistant(folder: Path, model: ModelConfig) -> tuple[ModelConfig, Sequence[Path]]:
    """Returns the configuration and files of an assistant. Raises StartupError if it cannot draft
    for this model."""
    config, files = assistant_config(folder, model), weight_files(folder)
    if faults := shape_faults(read_headers(files, config.tensor_names), config):
        raise StartupError(faults)
    return config, files


@dataclass(slots=True)
class _Record:
    """The model's final hidden `state` before a row's token at `position`, and the assistant's own
    after each guess. `tried` has the last step's states until `keep` says which were accepted."""

    position: int
    state: Floats
    guessed: list[Floats] = field(default_factory=list)
    tried: Floats | None = None


class Assistant:
    """`DraftLayer` for a model on the CPU. In a step without draws it forgets a row's state."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        model: KernelDecoder,
        model_config: ModelConfig,
        cache: PagedCache,
        max_seq_len: int,
    ) -> None:
        """`cache` is the model's."""
        sources = kv_layers(model_config)
        places = {
            layer: cache.places[sources[window is not None]]
            for layer, window in enumerate(config.windows)
        }
        # The kernels require an embedding, but do not read it here.
        parameters.packed[EMBEDDING] = parameters.packed[HEAD]
        # Steps run one position early, so that the last token's query reads only earlier slots.
        self._decoder = KernelDecoder(config, parameters, cache, max_seq_len, places, first_turn=1)
        self._kernels, self._packed = parameters.packing.kernels, parameters.packed
        self._model = model
        self._records: dict[int, _Record] = {}  # keys are rows

    def follow(self, steps: Sequence[RowStep], hidden: Sequence[Hidden | None]) -> None:
        """Take the hidden states of a model's step."""
        for step, states in zip(steps, hidden, strict=True):
            self.forget(step.row)
            if step.draws and states is not None:
                certain = len(step.token_ids) - step.num_guesses
                record = _Record(step.start + certain, states[certain - 1].copy())
                record.tried = states if step.num_guesses else None
                self._records[step.row] = record

    def keep(self, step: RowStep, accepted: Sequence[int]) -> None:
        """See `ModelRunner`."""
        record = self._records.get(step.row)
        if record is not None and record.tried is not None:
            record.position = step.start + len(accepted)
            record.state, record.tried = record.tried[accepted[-1]].copy(), None

    def forget(self, row: int) -> None:
        """Forget a row's state, because another request begins in it."""
        self._records.pop(row, None)

    def knows(self, row: int, position: int) -> bool:
        record = self._records.get(row)
        if record is None or record.tried is not None:
            return False
        return record.position <= position <= record.position + len(record.guessed)

    def guess(self, tokens: Sequence[RowToken]) -> list[Guess]:
        return likeliest(self.logits_behind(tokens))

    def logits_behind(self, tokens: Sequence[RowToken]) -> Floats:
        """Returns the logits of guesses, [tokens, vocabulary]. The next call overwrites them."""
        steps, states = [], []
        for row, position, token_id in tokens:
            record = self._records[row]
            del record.guessed[position - record.position :]
            states.append((record.guessed or [record.state])[-1])
            steps.append(RowStep(row, record.position - 1, (token_id,), (DRAW,), wants_hidden=True))
        embedded = self._model.embedded([token.token_id for token in tokens])
        inputs = np.concatenate([embedded, np.stack(states)], axis=1)
        projected = self._kernels.linear(inputs, self._packed["pre_projection.weight"])
        logits, hidden = self._decoder.forward(steps, projected)
        final_states = np.concatenate([each for each in hidden if each is not None])
        results = self._kernels.linear(final_states, self._packed["post_projection.weight"])
        for token, result in zip(tokens, results, strict=True):
            self._records[token.row].guessed.append(result)
        return logits
