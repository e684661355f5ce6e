"""The time of a model's step at the speeds of datasheets, in parts.

A step of n rows reads the weights (only those experts that n tokens choose) and the rows' caches,
and computes 2 operations per parameter and token. Each part is a time at the datasheet's speed; the
calibration says how many times as long it really takes. Two parts are not bandwidth: the fixed time
of a layer (`layer`), and the time that cards sharing a layer wait for each other (`sync`).
Attention counts as reading only; its operations are left out.

Units: milliseconds and bytes. Pure: any thread.
"""

from dataclasses import dataclass

import numpy as np

from common.numerics import FloatArray
from optimizer.catalogue.facts import AcceleratorFacts, ModelFacts, Precision

PARTS = (
    "layer",  # ms per layer and step
    "sync",  # additional ms per layer that cards share
    "weights",  # from here on: factor on the datasheet's time
    "cache",
    "dense",  # products in 16 or 8 bits
    "fp4",
    "experts",  # products of models with experts, at the speed of 16 bits for every precision
    "request",  # ms per request, outside of steps
)
IN_MS = ("layer", "sync", "request")  # parts that no datasheet gives

BITS = {  # bits of a matrix's parameter, scales included
    Precision.BF16: 16.0,
    Precision.FP8: 8.0,
    Precision.INT4: 4.25,
    Precision.FP4: 4.5,
    Precision.MXFP4: 16.0,
}
EXPERT_BITS = BITS | {Precision.MXFP4: 4.25}
VOCABULARY_BITS = 16.0
USABLE = 0.9  # share of memory for weights and caches
REDUCTIONS = 2  # reductions in a layer that cards share
ACTIVATION_BYTES = 2


@dataclass(frozen=True, slots=True)
class Machine:
    """A model in a precision on cards that share each of its layers."""

    model: ModelFacts
    accelerator: AcceleratorFacts
    cards: int
    precision: Precision
    cache_bits: int = 16

    @property
    def weights_bytes(self) -> float:
        """Bytes of all weights, on all cards together."""
        vocabulary_bytes = self._vocabulary_parameters * VOCABULARY_BITS / 8
        return self._matrices_bytes + self._experts_bytes + vocabulary_bytes

    @property
    def memory_bytes(self) -> float:
        """Usable bytes of all cards together."""
        return USABLE * 1e9 * self.accelerator.memory_gb * self.cards

    def cache_bytes(self, tokens: float) -> float:
        """Returns the cache bytes of a row of `tokens` tokens."""
        model = self.model
        width = model.kv_heads * model.head_size
        near_kv_heads = model.window_kv_heads or model.kv_heads
        near_width = near_kv_heads * (model.window_head_size or model.head_size)
        values = (model.layers - model.window_layers - model.state_layers) * width * tokens
        values += model.window_layers * near_width * min(tokens, model.window_tokens)
        return 2 * values * self.cache_bits / 8 + model.state_layers * model.state_bytes

    def rows_that_fit(self, tokens: float) -> int:
        """Returns how many rows of `tokens` tokens fit into memory besides the weights."""
        left = self.memory_bytes - self.weights_bytes
        return max(int(left // max(self.cache_bytes(tokens), 1.0)), 0)

    def step(self, rows: float, context: float) -> FloatArray:
        """Returns the parts of a step in which `rows` rows decode, each after `context` tokens."""
        parts = self._computed(rows)
        parts[PARTS.index("layer")] = self.model.layers
        parts[PARTS.index("sync")] = self.model.layers * (self.cards > 1)
        parts[PARTS.index("weights")] = self._read_ms(self._read_bytes(rows))
        parts[PARTS.index("cache")] = self._read_ms(rows * self.cache_bytes(context))
        return parts

    def prompt_token(self) -> FloatArray:
        """Returns the parts of one additional prompt token in a step."""
        return self._computed(1.0)

    def link_ms(self, tokens: float) -> float:
        """Returns the time to exchange tokens between the cards, at the datasheet's speed."""
        if self.cards == 1:
            return 0.0
        sent = REDUCTIONS * self.model.layers * self.model.width * ACTIVATION_BYTES
        share = 2 * (self.cards - 1) / self.cards
        return tokens * sent * share / (self.accelerator.link_gbs * 1e6)

    @property
    def _matrices_bytes(self) -> float:
        return self._matrix_parameters * BITS[self.precision] / 8

    @property
    def _experts_bytes(self) -> float:
        experts = self.model.experts
        return experts.parameters * EXPERT_BITS[self.precision] / 8 if experts else 0.0

    @property
    def _vocabulary_parameters(self) -> float:
        return (1 if self.model.tied else 2) * self.model.vocabulary_parameters

    @property
    def _matrix_parameters(self) -> float:
        experts = self.model.experts.parameters if self.model.experts else 0.0
        return self.model.parameters - self._vocabulary_parameters - experts

    def _read_bytes(self, rows: float) -> float:
        """Returns the bytes that a step reads, which include no input matrix of the vocabulary."""
        read = self._matrices_bytes + self.model.vocabulary_parameters * VOCABULARY_BITS / 8
        experts = self.model.experts
        if experts is None:
            return read
        idle = float((1 - experts.active / experts.count) ** rows)
        return read + self._experts_bytes * (1 - idle)

    def _read_ms(self, num_bytes: float) -> float:
        return num_bytes / (self.accelerator.memory_gbs * 1e6 * self.cards)

    def _computed(self, tokens: float) -> FloatArray:
        model, parts = self.model, np.zeros(len(PARTS))
        parameters = self._matrix_parameters + model.vocabulary_parameters
        if model.experts:
            parameters += model.experts.parameters * model.experts.active / model.experts.count
        products = "bf16" if model.experts else self._products()
        part = "experts" if model.experts else "fp4" if products == "fp4" else "dense"
        tflops = self.accelerator.tflops[products]
        parts[PARTS.index(part)] = 2 * parameters * tokens / (tflops * 1e9 * self.cards)
        return parts

    def _products(self) -> str:
        """Returns the precision of products. A card widens weights that it cannot multiply."""
        precision = self.precision.value
        return precision if precision in self.accelerator.tflops else "bf16"
