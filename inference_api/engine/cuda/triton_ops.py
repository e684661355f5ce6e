"""Operations by our own kernels in Triton: two launches for attention, one for any other operation.

Needs triton and, for CUDA, a C compiler, because Triton compiles the code that launches a kernel.
With Triton's interpreter (TRITON_INTERPRET=1), these operations run on the CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
import triton
from torch import Tensor

from inference_api.engine.cuda import triton_kernels as kernels
from inference_api.engine.cuda import triton_products as products
from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.engine.cuda.ops import (
    MAX_PRODUCT_TOKENS,
    NUM_LINES,
    POSITIONS,
    PROMPT_LINES,
    SLOTS,
    Affine,
    LayerHeads,
    TokenOperations,
)
from inference_api.engine.cuda.panels import Panels
from inference_api.engine.cuda.rope import Rope
from inference_api.engine.cuda.torch_ops import TorchOps
from inference_api.kernels.packing import GROUP, PANEL
from inference_api.loading.config import ModelConfig

MIN_SPLIT, MAX_SPLITS = 256, 32  # positions for a program, and programs for a head
MIN_DOT_SIZE = 16  # rows and columns that Triton's dot product needs
TILE_BYTES = 16384  # size of keys, and of values, that are multiplied at once
MAX_PLACES = 64
GATE_BLOCK = 1024
NO_NORM = None, None
BLOCK_TOKENS, BLOCK_OUTPUTS = MIN_DOT_SIZE, 2 * PANEL  # multiplied at once by a program
MIN_PROGRAMS = 512  # programs of a product, unless its inputs are too few to cut
MAX_PARTS, MIN_PART_GROUPS = 8, 4  # parts of the inputs, and groups of a part
WIDENED_GROUPS = 8  # groups that a program widens, one after another


@dataclass(frozen=True, slots=True)
class TritonOps:
    """See `Operations`. Reads no value on the host, so that everything can be recorded."""

    config: ModelConfig
    cache: TorchCache
    rope: Rope
    min_split: int = MIN_SPLIT

    is_of_any_size: ClassVar[bool] = True

    def norm_add(
        self, x: Tensor, update: Tensor | None, update_norm: Affine | None, norm: Affine | None
    ) -> tuple[Tensor, Tensor]:
        if update is None and norm is None:
            return x, x
        total = x if update is None else torch.empty_like(x)
        normed = total if norm is None else torch.empty_like(x)
        num_tokens, size = x.shape
        block = triton.next_power_of_2(size)
        kernels.norm_add[(num_tokens,)](
            *(x, update, *(update_norm or NO_NORM), *(norm or NO_NORM), total, normed),
            *(self.config.residual_multiplier, self.config.norm_eps, num_tokens),
            *(size, block, self.config.norm == "rms", _num_parts_of(update)),
            num_warps=_num_warps(block),
        )
        return total, normed

    def gate(self, up: Tensor) -> Tensor:
        num_tokens, width = up.shape[-2:]
        size = width // 2 if self.config.is_mlp_gated else width
        swiglu = self.config.swiglu if self.config.is_mlp_gated else None
        clamps = (None, None) if swiglu is None else (swiglu.limit, swiglu.alpha)
        out = self.cache.entries.new_empty(num_tokens, size)
        kernels.gate[(num_tokens, triton.cdiv(size, GATE_BLOCK))](
            *(up, out, *clamps, num_tokens, width, size),
            *(self.config.activation, GATE_BLOCK, _num_parts_of(up)),
        )
        return out

    @staticmethod
    def multiply(x: Tensor, weights: Sequence[Panels], bias: Tensor | None) -> Tensor:
        """See `Operations`. With many tokens, which only prompts have, weights are widened for
        cuBLAS. This takes less time than reading packed weights again for every few tokens."""
        x = x.contiguous()
        (num_tokens, inputs), width = x.shape, sum(each.outputs for each in weights)
        if num_tokens > MAX_PRODUCT_TOKENS:
            numbers = x.new_empty(width, inputs)
            sizes = [each.outputs for each in weights]
            for each, place in zip(weights, numbers.split_with_sizes(sizes), strict=True):
                _widen(each, None, place)
            return F.linear(x, numbers, bias)
        parts = num_parts(width, inputs)
        out = x.new_empty(parts, num_tokens, width, dtype=x.dtype if parts == 1 else torch.float32)
        column = 0
        for each in weights:
            blocks = triton.cdiv(num_tokens, BLOCK_TOKENS), triton.cdiv(each.outputs, BLOCK_OUTPUTS)
            products.multiply[(*blocks, parts)](
                *(x, *_views(each), bias, out, num_tokens),
                *(inputs, each.outputs, each.first, each.bits, width, column),
                *(triton.cdiv(inputs // GROUP, parts), BLOCK_TOKENS, BLOCK_OUTPUTS),
                num_stages=4,
            )
            column += each.outputs
        return out[0] if parts == 1 else out

    def embed(self, ids: Tensor, table: Panels) -> Tensor:
        out = self.cache.entries.new_empty(len(ids), table.inputs)
        _widen(table, ids, out)
        return out

    def tokens(self, inputs: Tensor, lengths: Sequence[int]) -> TokenOperations:
        return _Tokens(self, inputs)

    def prompt(self, inputs: Tensor, length: int) -> TokenOperations:
        return _PromptTokens(self, inputs, length)


class _Tokens:
    """Each token attends to its own positions, in splits that begin at 0. Nothing is copied."""

    def __init__(self, ops: TritonOps, inputs: Tensor) -> None:
        self._config, self._rope = ops.config, ops.rope
        self._entries = ops.cache.entries
        self._positions, self._rows, _ = inputs[POSITIONS:PROMPT_LINES]
        self._slots = inputs[SLOTS:NUM_LINES]
        self._block_dims = max(triton.next_power_of_2(ops.config.head_dim), MIN_DOT_SIZE)
        capacity = ops.cache.capacity
        self._split = ops.min_split
        while self._split * MAX_SPLITS < capacity:
            self._split *= 2
        self._num_splits = triton.cdiv(capacity, self._split)
        of_place = self._block_dims * self._entries.element_size()
        self._block_places = min(max(TILE_BYTES // of_place, MIN_DOT_SIZE), MAX_PLACES, self._split)

    def place_heads(self, qkv: Tensor, heads: LayerHeads) -> Tensor:
        config = self._config
        num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        turns = self._rope.of_layer(heads.layer)
        all_heads_block = 0
        if heads.qk_norm is not None and config.is_qk_norm_whole:
            assert not config.is_qk_norm_last, "no family has both"
            all_heads_block = triton.next_power_of_2(num_heads * head_dim)
        num_rows = qkv.shape[-2]
        queries = self._entries.new_empty(num_rows, num_heads, head_dim)
        kernels.place_heads[(len(self._positions), num_heads + 2 * num_kv_heads)](
            *(qkv, self._positions, self._rows, self._slots, heads.qk_norm),
            *((None,) * 3 if turns is None else turns),
            *(queries, self._entries[heads.layer], config.norm_eps, self._entries.shape[-2]),
            *(num_rows, num_heads, num_kv_heads, head_dim),
            *(0 if turns is None else config.rotary_dim, config.is_qk_norm_last),
            *(all_heads_block, self._block_dims, _num_parts_of(qkv)),
            num_warps=_num_warps(max(all_heads_block, self._block_dims)),
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
            *(queries, self._positions, self._rows, self._slots, self._entries[heads.layer]),
            *(sums, totals, largests, num_tokens, capacity, window, config.attention_scale),
            *(num_heads, config.num_kv_heads, head_dim, len(self._slots), self._split),
            max(triton.next_power_of_2(config.num_groups), MIN_DOT_SIZE),
            *(self._block_dims, self._block_places),
            num_stages=2,
        )
        out = torch.empty_like(queries)
        kernels.combine[(len(out), num_heads)](
            *(sums, totals, largests, self._positions, heads.sinks, out, num_tokens, window),
            *(head_dim, self._num_splits, self._split),
            *(triton.next_power_of_2(self._num_splits), self._block_dims),
        )
        return out.flatten(1)


class _PromptTokens(_Tokens):
    """Tokens of a prompt attend by torch, which reads keys once for many tokens."""

    def __init__(self, ops: TritonOps, inputs: Tensor, length: int) -> None:
        super().__init__(ops, inputs)
        self._by_torch = TorchOps(ops.config, ops.cache, ops.rope).prompt(inputs, length)

    def attend(self, queries: Tensor, heads: LayerHeads) -> Tensor:
        return self._by_torch.attend(queries, heads)


def num_parts(outputs: int, inputs: int) -> int:
    """Returns how many parts a product's inputs are cut into, for any number of tokens."""
    wanted: int = triton.cdiv(MIN_PROGRAMS, triton.cdiv(outputs, BLOCK_OUTPUTS))
    return max(min(MAX_PARTS, wanted, inputs // (MIN_PART_GROUPS * GROUP)), 1)


def _num_parts_of(product: Tensor | None) -> int:
    return 1 if product is None or product.ndim == 2 else len(product)


def _views(matrix: Panels) -> tuple[Tensor, Tensor]:
    return matrix.blocks.view(torch.int32), matrix.blocks.view(torch.float16)


def _widen(matrix: Panels, rows: Tensor | None, out: Tensor) -> None:
    groups = triton.cdiv(matrix.inputs // GROUP, WIDENED_GROUPS)
    products.widen[(triton.cdiv(len(out), PANEL), groups)](
        *(*_views(matrix), rows, out, len(out)),
        *(matrix.inputs, matrix.first, matrix.bits, WIDENED_GROUPS, PANEL),
    )


def _num_warps(block: int) -> int:
    """Returns the number of warps (32 threads): a thread has about 16 numbers of `block`."""
    return min(max(block // 512, 1), 16)
