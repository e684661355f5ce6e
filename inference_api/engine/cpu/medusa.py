"""Medusa heads on the CPU: they guess a model's next tokens from its last hidden state.

Cai et al. 2024, arXiv 2401.10774: head k computes `W_k (h + SiLU(A_k h + b_k))`, where `h` is the
input of the model's own output head, and guesses the token k + 1 positions after the one that `h`
drew.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inference_api.engine.medusa_tree import tree_paths
from inference_api.kernels.interface import Floats, ffi
from inference_api.kernels.library import Kernels, PackedWeight
from inference_api.kernels.packing import BITS, PANEL, Bits, packed_bytes
from inference_api.loading.config import ModelConfig
from inference_api.loading.heads import MedusaFile
from inference_api.loading.layout import HEAD
from inference_api.loading.packing.pages import anonymous
from inference_api.loading.weights import Parameters
from inference_api.runner import HeadGuesses, Hidden

LAYER_BITS, OUTPUT_BITS = BITS["int8"], BITS["int4"]
UNPACKED_ROWS = 64 * PANEL  # rows of the model's own head that are unpacked at a time


class MedusaHeads:
    """`DraftHeads` for a model on the CPU. Decode thread only.

    A wrong guess costs time but changes no answer, so the heads are rounded: layers to 8 bits, and
    output matrices, which are most of the bytes to read, to 4.
    """

    def __init__(
        self,
        file: MedusaFile,
        config: ModelConfig,
        parameters: Parameters,
        packer: Kernels | None = None,
    ) -> None:
        """`parameters` are the model's packed weights. `packer` packs the heads; it is not the
        model's kernels if these belong to another thread."""
        self._kernels = parameters.packing.kernels
        kernels = packer or self._kernels
        self.paths = tree_paths(file, config)
        self._num_heads = num_heads = max(map(len, self.paths))  # no path uses further heads
        self._num_ranks = 1 + max(map(max, self.paths))
        self._token_ids = file.token_ids
        weights, biases = file.weights[:num_heads], file.biases[:num_heads]
        first = (
            _packed(kernels, np.concatenate([layers[0] for layers in weights]), LAYER_BITS),
            np.concatenate([layers[0] for layers in biases]),
        )
        later = [
            (_packed(kernels, own_weights[at], LAYER_BITS), own_biases[at])
            for at in range(1, len(weights[0]))
            for own_weights, own_biases in zip(weights, biases, strict=True)
        ]
        if file.outputs is not None:
            chosen = slice(None) if file.token_ids is None else file.token_ids
            outputs = [
                _packed(kernels, each[chosen], OUTPUT_BITS) for each in file.outputs[:num_heads]
            ]
        else:
            outputs = [_rows_of(kernels, parameters.packed[HEAD], file.token_ids)]
        self._linears = first, later, outputs  # keeps alive what the C structs point to
        self._later = ffi.new("HearthLinear[]", [each.linear(bias) for each, bias in later])
        self._outputs = ffi.new("HearthLinear[]", [each.linear() for each in outputs])
        self._heads = ffi.new(
            "HearthHeads *",
            (
                *(first[0].linear(first[1]), self._later, self._outputs),
                *(num_heads, len(later), len(outputs), self._num_ranks),
                *(config.logits_divisor, config.logits_softcap or 0.0),
            ),
        )

    def guess(self, hidden: Sequence[Hidden]) -> HeadGuesses:
        states = np.stack(hidden)
        shape = len(states), self._num_heads, self._num_ranks
        token_ids, probabilities = np.empty(shape, np.int64), np.empty(shape, np.float32)
        self._kernels.guess(self._heads, states, token_ids, probabilities)
        if self._token_ids is not None:
            token_ids = self._token_ids[token_ids]
        return HeadGuesses(token_ids, probabilities)


def _packed(kernels: Kernels, weights: Floats, bits: Bits) -> PackedWeight:
    packed = _empty(bits, *weights.shape)
    kernels.pack(weights, packed)
    return packed


def _empty(bits: Bits, outputs: int, inputs: int) -> PackedWeight:
    """Returns an empty weight in pages of its own, which are freed with the heads."""
    pages = anonymous(packed_bytes(bits, outputs, inputs))
    return PackedWeight.empty(bits, outputs, inputs, np.frombuffer(pages, np.uint8))


def _rows_of(
    kernels: Kernels, weight: PackedWeight, rows: NDArray[np.int64] | None
) -> PackedWeight:
    """Returns some outputs of a packed matrix, in 4 bits. Unpacks UNPACKED_ROWS at a time."""
    if rows is None:
        rows = np.arange(weight.outputs)
        if weight.bits in BITS.values():
            return weight
    packed = _empty(OUTPUT_BITS, len(rows), weight.inputs)
    first_output = 0
    for begin in range(0, weight.outputs, UNPACKED_ROWS):
        end = min(begin + UNPACKED_ROWS, weight.outputs)
        wanted = rows[(rows >= begin) & (rows < end)]
        if len(wanted):
            part = weight.part(begin, end).unpack()
            kernels.pack(part[wanted - begin], packed, first_output)
            first_output += len(wanted)
    return packed
