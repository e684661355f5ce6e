"""Operations by kernels of our own, written in Triton: two launches to attend, one for any other.

Needs triton and, for CUDA, a C compiler: Triton compiles what launches a kernel. Where its
interpreter runs (TRITON_INTERPRET=1), so do these, on the CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import triton
from torch import Tensor

from inference_api.engine.cuda import triton_kernels as kernels
from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.engine.cuda.ops import (
    POSITIONS,
    PROMPT_LINES,
    SLOTS,
    Affine,
    LayerHeads,
    TokenOperations,
)
from inference_api.engine.cuda.rope import Rope
from inference_api.engine.cuda.torch_ops import TorchOps
from inference_api.loading.config import ModelConfig

LEAST_SPLIT, MOST_SPLITS = 256, 32  # positions that a program attends to, and programs for a head
LEAST_SIDE = 16  # a dot product takes no less
TILE_BYTES = 16384  # keys, and values, that are multiplied at once
MOST_PLACES = 64
GATE_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class TritonOps:
    """See `Operations`. No value is looked at on the host: whatever it does can be recorded."""

    config: ModelConfig
    cache: TorchCache
    rope: Rope
    least_split: int = LEAST_SPLIT

    is_of_any_size: ClassVar[bool] = True

    def norm_add(
        self, x: Tensor, made: Tensor | None, made_norm: Affine | None, norm: Affine | None
    ) -> tuple[Tensor, Tensor]:
        if made is None and norm is None:
            return x, x
        total = x if made is None else torch.empty_like(x)
        normed = total if norm is None else torch.empty_like(x)
        size = x.shape[1]
        block = triton.next_power_of_2(size)
        kernels.norm_add[(len(x),)](
            x,
            made,
            *self._weights(made_norm),
            *self._weights(norm),
            total,
            normed,
            self.config.residual_multiplier,
            self.config.norm_eps,
            size,
            block,
            self.config.norm == "rms",
            num_warps=_num_warps(block),
        )
        return total, normed

    def _weights(self, norm: Affine | None) -> tuple[Tensor | None, Tensor | None]:
        if norm is None:
            return None, None
        return norm.weight, None if self.config.norm == "rms" else norm.bias

    def gate(self, up: Tensor) -> Tensor:
        num_tokens, width = up.shape
        size = width // 2 if self.config.is_mlp_gated else width
        swiglu = self.config.swiglu if self.config.is_mlp_gated else None
        out = up.new_empty(num_tokens, size)
        kernels.gate[(num_tokens, triton.cdiv(size, GATE_BLOCK))](
            up,
            out,
            None if swiglu is None else swiglu.limit,
            None if swiglu is None else swiglu.alpha,
            width,
            size,
            self.config.activation,
            GATE_BLOCK,
        )
        return out

    def tokens(self, inputs: Tensor, lengths: Sequence[int], is_in_order: bool) -> TokenOperations:
        return _Tokens(self, inputs)

    def prompt(self, inputs: Tensor, length: int) -> TokenOperations:
        of_torch = TorchOps(self.config, self.cache, self.rope).prompt(inputs, length)
        return _PromptTokens(_Tokens(self, inputs), of_torch)


class _Tokens:
    """Each attends to its own positions, split as their numbers have it, and nothing is copied."""

    def __init__(self, ops: TritonOps, inputs: Tensor) -> None:
        self._config, self._rope = ops.config, ops.rope
        self._entries = ops.cache.entries
        self._positions, self._rows, _ = inputs[POSITIONS:PROMPT_LINES]
        self._slots = inputs[SLOTS:]
        self._block_dims = max(triton.next_power_of_2(ops.config.head_dim), LEAST_SIDE)
        capacity = ops.cache.capacity
        self._split = ops.least_split
        while self._split * MOST_SPLITS < capacity:
            self._split *= 2
        self._num_splits = triton.cdiv(capacity, self._split)
        of_place = self._block_dims * self._entries.element_size()
        self._block_places = min(max(TILE_BYTES // of_place, LEAST_SIDE), MOST_PLACES, self._split)

    def place_heads(self, qkv: Tensor, heads: LayerHeads) -> Tensor:
        config = self._config
        num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        turns = self._rope.of_layer(heads.layer)
        whole_block = 0
        if heads.qk_norm is not None and config.is_qk_norm_whole:
            assert not config.is_qk_norm_last, "no family has both"
            whole_block = triton.next_power_of_2(num_heads * head_dim)
        queries = qkv.new_empty(len(qkv), num_heads, head_dim)
        kernels.place_heads[(len(self._positions), num_heads + 2 * num_kv_heads)](
            qkv,
            self._positions,
            self._rows,
            self._slots,
            heads.qk_norm,
            *((None,) * 3 if turns is None else turns),
            queries,
            self._entries[heads.layer],
            config.norm_eps,
            self._entries.shape[-2],
            num_heads,
            num_kv_heads,
            head_dim,
            0 if turns is None else config.rotary_dim,
            config.is_qk_norm_last,
            whole_block,
            self._block_dims,
            num_warps=_num_warps(max(whole_block, self._block_dims)),
        )
        return queries

    def attend(self, queries: Tensor, heads: LayerHeads) -> Tensor:
        config, num_tokens = self._config, len(self._positions)
        num_heads, head_dim = config.num_heads, config.head_dim
        capacity = self._entries.shape[-2]
        window = config.windows[heads.layer] or capacity
        of_parts = num_tokens, num_heads, self._num_splits
        sums = queries.new_empty(*of_parts, head_dim, dtype=torch.float32)
        totals, largests = (queries.new_empty(of_parts, dtype=torch.float32) for _ in range(2))
        kernels.attend[(num_tokens, config.num_kv_heads, self._num_splits)](
            queries,
            self._positions,
            self._rows,
            self._slots,
            self._entries[heads.layer],
            sums,
            totals,
            largests,
            num_tokens,
            capacity,
            window,
            config.attention_scale,
            num_heads,
            config.num_kv_heads,
            head_dim,
            len(self._slots),
            self._split,
            max(triton.next_power_of_2(config.num_groups), LEAST_SIDE),
            self._block_dims,
            self._block_places,
            num_stages=2,
        )
        out = torch.empty_like(queries)
        kernels.combine[(len(out), num_heads)](
            sums,
            totals,
            largests,
            self._positions,
            heads.sinks,
            out,
            num_tokens,
            window,
            head_dim,
            self._num_splits,
            self._split,
            triton.next_power_of_2(self._num_splits),
            self._block_dims,
        )
        return out.flatten(1)


@dataclass(frozen=True, slots=True)
class _PromptTokens:
    """Tokens of a prompt attend by torch: their keys are read once for many of them."""

    placed: TokenOperations
    attended: TokenOperations

    def place_heads(self, qkv: Tensor, heads: LayerHeads) -> Tensor:
        return self.placed.place_heads(qkv, heads)

    def attend(self, queries: Tensor, heads: LayerHeads) -> Tensor:
        return self.attended.attend(queries, heads)


def _num_warps(block: int) -> int:
    """Threads in 32s, each of which has a few numbers of `block`."""
    return min(max(block // 512, 1), 16)
