"""Computes moments of the inputs of a model's matrices while it reads a text. Needs torch.

One layer is in memory at a time, with the states of all tokens before it. Once its matrices are
rounded, the text runs through the rounded ones, so that later layers see their real inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from inference_api.engine.cuda.decoder import Decoder
from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.engine.cuda.parameters import TorchParameters, load_torch_parameters
from inference_api.engine.cuda.rope import Rope
from inference_api.engine.cuda.torch_ops import TorchOps
from inference_api.errors import StartupError
from inference_api.loading.config import LayerRange, ModelConfig
from inference_api.loading.gguf.files import GgufModel
from inference_api.loading.layout import EMBEDDING, weight_plan
from inference_api.text.tokens import load_tokenizer
from scripts.quantize.grids import Floats

MAX_TOKENS = 8192
WINDOW_TOKENS = 512
CPU = torch.device("cpu")
Moments = dict[str, NDArray[np.float64]]  # [inputs, inputs], by names of parts in `weight_plan`


@dataclass(slots=True)
class _Watch(TorchFunctionMode):
    """Adds up the second moments of linear maps' inputs, by the addresses of their weights."""

    sums: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.linear:
            inputs, weight = args[0].flatten(0, -2), args[1]
            place = weight.data_ptr(), weight.data_ptr() + weight.nbytes
            moments = (inputs.T @ inputs).double()
            self.sums[place] = self.sums[place] + moments if place in self.sums else moments
        return func(*args, **(kwargs or {}))

    def moments_of(self, weights: Mapping[str, Tensor]) -> Moments:
        """Returns the moments of the inputs of `weights`, which are matrices or parts of them.
        Parts of one matrix share theirs. Weights that were not used are left out."""
        arrays = {place: moments.numpy() for place, moments in self.sums.items()}
        return {
            name: moments
            for name, weight in weights.items()
            for (begin, end), moments in arrays.items()
            if begin <= weight.data_ptr() < end
        }


class Calibration:
    """Runs a text through a model, layer by layer."""

    def __init__(self, file: Path, config: ModelConfig, windows: Sequence[Sequence[int]]) -> None:
        """`windows` are lists of token ids, each of which is read as a text of its own."""
        self._file, self._config, self._windows = file, config, windows
        ends = self._load(config.part(LayerRange(0, 0)))
        ids = torch.tensor([token for window in windows for token in window])
        self._states = F.embedding(ids, ends[EMBEDDING]) * config.embedding_multiplier
        self._final = {name: each for name, each in ends.items() if name.startswith("final_norm")}
        self._parts: dict[str, Tensor] = {}

    def moments(self, layer: int) -> Moments:
        """Returns the moments for a layer's matrices. Call it for each layer in order, and
        `advance` after each call."""
        self._part = replace(self._config.part(LayerRange(layer, layer + 1)), has_ends=False)
        self._tensors = self._load(self._part)
        self._parts = {
            part.name: view
            for name, parts in weight_plan(self._part).items()
            for part, view in zip(
                parts, self._tensors[name].split([part.shape[0] for part in parts]), strict=True
            )
        }
        watch = _Watch()
        with watch:
            self._run(self._part, self._tensors)
        return watch.moments_of(self._parts)

    def replace_part(self, name: str, numbers: Floats) -> None:
        """Set a part of the layer to its rounded numbers, with rows in Hearth's order."""
        self._parts[name].copy_(torch.from_numpy(numbers))

    def advance(self) -> None:
        """Run the text through the layer with its current weights."""
        self._states = self._run(self._part, self._tensors)

    def head_moments(self) -> NDArray[np.float64]:
        """Returns the moments of the output head's inputs, after all layers."""
        states = self._run(self._config.part(LayerRange(0, 0)), self._final)
        return (states.T @ states).double().numpy()

    def _load(self, config: ModelConfig) -> dict[str, Tensor]:
        return load_torch_parameters([self._file], config, CPU, torch.float32).tensors

    @torch.inference_mode()
    def _run(self, config: ModelConfig, tensors: dict[str, Tensor]) -> Tensor:
        """Returns the states after these layers, and after the final norm if `tensors` has it."""
        config = replace(config, has_ends=False)
        longest = max(map(len, self._windows))
        cache = TorchCache(config, 1, longest, CPU, torch.float32)
        ops = TorchOps(config, cache, Rope(config, longest, CPU, torch.float32))
        decoder = Decoder(config, TorchParameters(tensors), cache, ops)
        lengths = [len(window) for window in self._windows]
        after: list[Tensor] = []
        for length, states in zip(lengths, self._states.split(lengths), strict=True):
            positions = torch.arange(length)
            nothing = torch.zeros_like(positions)
            inputs = torch.stack([nothing, positions, nothing, positions])
            after += decoder.prompt_states([length], states, inputs)
        return torch.cat(after)


def begin(text: str, file: Path, model: GgufModel) -> Calibration:
    """Returns a calibration with the first MAX_TOKENS of a text. Raises StartupError if torch
    cannot decode the model, or the text has no tokens."""
    config = model.config
    if config.recurrent is not None or config.shapes:
        raise StartupError(f"torch does not decode {config.family}; leave out --calibrate.")
    tokens = load_tokenizer(file, frozenset()).encode(text)[:MAX_TOKENS]
    size = min(WINDOW_TOKENS, config.max_positions) - 1
    windows = [[tokens[0], *tokens[first : first + size]] for first in range(1, len(tokens), size)]
    if not windows:
        raise StartupError("The text of --calibrate has no tokens; give another.")
    return Calibration(file, config, windows)
