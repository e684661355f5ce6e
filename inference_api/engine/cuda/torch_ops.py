"""Operations by torch, on any device and in any precision. All others must agree with these."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.engine.cuda import parameters
from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.engine.cuda.ops import (
    NUM_LINES,
    POSITIONS,
    PROMPT_LINES,
    SLOTS,
    Affine,
    LayerHeads,
    TokenOperations,
)
from inference_api.engine.cuda.panels import Panels, unpacked
from inference_api.engine.cuda.rope import Rope, TensorTurns, turn
from inference_api.loading.config import ModelConfig
from inference_api.runner import MAX_TREE_TOKENS

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


@dataclass(frozen=True, slots=True)
class TorchOps:
    """See `Operations`. Reads no value on the host, so that everything can be recorded."""

    config: ModelConfig
    cache: TorchCache
    rope: Rope

    is_of_any_size: ClassVar[bool] = False

    def norm_add(
        self, x: Tensor, update: Tensor | None, update_norm: Affine | None, norm: Affine | None
    ) -> tuple[Tensor, Tensor]:
        if update is not None:
            update = self._normed(update, update_norm)
            x = torch.add(x, update, alpha=self.config.residual_multiplier)
        return x, self._normed(x, norm)

    def _normed(self, x: Tensor, norm: Affine | None) -> Tensor:
        if norm is None:
            return x
        if self.config.norm == "rms":
            return F.rms_norm(x, norm.weight.shape, norm.weight, self.config.norm_eps)
        return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, self.config.norm_eps)

    def gate(self, up: Tensor) -> Tensor:
        activation, swiglu = ACTIVATIONS[self.config.activation], self.config.swiglu
        if not self.config.is_mlp_gated:
            return activation(up)
        gate, up = up.chunk(2, dim=-1)
        if swiglu is None:
            return activation(gate) * up
        gate, up = gate.clamp(max=swiglu.limit), up.clamp(-swiglu.limit, swiglu.limit)
        return gate * torch.sigmoid(swiglu.alpha * gate) * (up + 1)

    multiply = staticmethod(parameters.multiply)

    def embed(self, ids: Tensor, table: Panels) -> Tensor:
        return unpacked(table, ids).to(self.cache.entries.dtype)

    def tokens(self, inputs: Tensor, lengths: Sequence[int]) -> TokenOperations:
        return _Tokens(self, inputs.long(), lengths)

    def prompt(self, inputs: Tensor, length: int) -> TokenOperations:
        return _PromptTokens(self, inputs.long(), length)


class _Placed:
    """Places the heads of a step's tokens. Subclasses attend."""

    def __init__(self, ops: TorchOps, inputs: Tensor, longest: int) -> None:
        """All positions are below `longest`."""
        self._config, self._rope = ops.config, ops.rope
        self._entries = ops.cache.entries
        positions, self._rows, self._slots = inputs[POSITIONS:PROMPT_LINES]
        self._positions = positions.clamp(min=0)  # absent tokens see one position: no NaN arises
        self._longest = longest
        self._biases = {window: self._bias(window) for window in {*ops.config.windows}}

    @cached_property
    def _turns(self) -> Sequence[TensorTurns | None]:
        return self._rope.at(self._positions)

    def _bias(self, window: int | None) -> Tensor:
        """Returns what is added to scores, [n, longest]: 0 where a token sees the position, else
        minus infinity. From a boolean mask, torch would make this again in each layer."""
        places = torch.arange(self._longest, device=self._positions.device)
        positions = self._positions[:, None]
        is_seen = places <= positions
        if window is not None:
            is_seen &= places > positions - window
        return self._entries.new_zeros(is_seen.shape).masked_fill_(~is_seen, -torch.inf)

    def place_heads(self, qkv: Tensor, heads: LayerHeads) -> Tensor:
        num_heads, num_kv_heads = self._config.num_heads, self._config.num_kv_heads
        of_token = qkv.view(len(qkv), -1, self._config.head_dim)
        qk, turns = of_token[:, : num_heads + num_kv_heads], self._turns[heads.layer]
        queries = qk[:, :num_heads]
        is_norm_last = self._config.is_qk_norm_last
        if heads.qk_norm is not None and not is_norm_last:
            qk.copy_(self._normed_heads(qk) * heads.qk_norm)
        if turns is not None:
            turn(qk, turns)
        if heads.qk_norm is not None and is_norm_last:
            qk.copy_(self._normed_heads(qk) * heads.qk_norm)
        if turns is not None and turns.query_scales is not None:
            queries *= turns.query_scales
        keys_and_values = of_token[:, num_heads:].unflatten(1, (2, num_kv_heads))
        self._entries[heads.layer][self._rows, :, :, self._slots] = keys_and_values
        return queries

    def _normed_heads(self, qk: Tensor) -> Tensor:
        """Returns `qk` [n, heads + kv_heads, head_dim], normalised."""
        config = self._config
        if not config.is_qk_norm_whole:
            return F.rms_norm(qk, (config.head_dim,), eps=config.norm_eps)
        parts = qk.split_with_sizes([config.num_heads, config.num_kv_heads], 1)
        return torch.cat([F.rms_norm(x, x.shape[1:], eps=config.norm_eps) for x in parts], 1)


class _Tokens(_Placed):
    """Tokens of any rows. The keys and values that each sees are copied, in the order of positions,
    so that no sum depends on where the row lies in memory.

    All tokens share one masked call for each length, and each takes the result of the shortest
    length that covers its position: a token's sums have the same shape however far its neighbours
    are. Query heads that share a key-value head stand in for a sequence: each key is read once.
    """

    def __init__(self, ops: TorchOps, inputs: Tensor, lengths: Sequence[int]) -> None:
        """See `Operations.tokens`."""
        *self._shorter, longest = lengths
        super().__init__(ops, inputs, longest)
        device, rows = inputs.device, self._rows[:, None]
        per_row = 2 * ops.config.num_kv_heads
        self._head_rows = rows * per_row + torch.arange(per_row, device=device)
        back = torch.arange(MAX_TREE_TOKENS, device=device)
        last = (self._positions[:, None] - back).clamp_(min=0)  # [n, MAX_TREE_TOKENS]
        columns = torch.arange(len(rows), device=device)[:, None]
        self._last_places = columns, slice(None), slice(None), last
        self._last_slots = rows, slice(None), slice(None), inputs[SLOTS:NUM_LINES].T

    def attend(self, queries: Tensor, heads: LayerHeads) -> Tensor:
        config = self._config
        keys, values = self._gathered(self._entries[heads.layer]).unbind(1)
        queries = queries.unflatten(1, (config.num_kv_heads, config.num_groups))
        sinks = heads.sinks
        sinks = None if sinks is None else sinks.view(config.num_kv_heads, config.num_groups, 1)
        bias = self._biases[config.windows[heads.layer]][:, None, None]

        def attend(length: int) -> Tensor:
            """Attend to the first `length` positions. Returns [n, kv_heads, groups, head_dim]."""
            seen = keys[:, :, :length], values[:, :, :length]
            return _attended(queries, *seen, config.attention_scale, bias[..., :length], sinks)

        attended = attend(self._longest)
        positions = self._positions.view(-1, 1, 1, 1)
        for length in reversed(self._shorter):
            attended = torch.where(positions < length, attend(length), attended)
        return attended.flatten(1)

    def _gathered(self, of_layer: Tensor) -> Tensor:
        """Returns keys and values that tokens see, [n, 2, kv_heads, longest, head_dim]. Copies
        whole heads as they lie, then replaces the positions that a tree has in other slots."""
        gathered: Tensor = of_layer.flatten(0, 2)[:, : self._longest][self._head_rows]
        gathered = gathered.unflatten(1, of_layer.shape[1:3])
        gathered[self._last_places] = of_layer[self._last_slots]
        return gathered


class _PromptTokens(_Placed):
    """Tokens of one row's prompt, which attend to each other and to the row's earlier tokens."""

    def attend(self, queries: Tensor, heads: LayerHeads) -> Tensor:
        config = self._config
        cached = self._entries[heads.layer][:, :, :, : self._longest]
        # [2, kv_heads, groups, positions, head_dim]; groups share memory
        cached = cached.index_select(0, self._rows[:1])[0].unsqueeze(2)
        keys, values = cached.expand(-1, -1, config.num_groups, -1, -1)
        queries = queries.unflatten(1, keys.shape[:2]).permute(1, 2, 0, 3)
        scale, bias = config.attention_scale, self._biases[config.windows[heads.layer]]
        if heads.sinks is None:
            attended = _attended(queries, keys, values, scale, bias)
        else:  # one key-value head at a time, because scores take memory
            sinks = heads.sinks.view(*keys.shape[:2], 1, 1)
            of_heads = zip(queries, keys, values, sinks, strict=True)
            attended = torch.stack(
                [_attended(q, k, v, scale, bias, sink) for q, k, v, sink in of_heads]
            )
        return attended.permute(2, 0, 1, 3).flatten(1)  # from [kv_heads, groups, n, head_dim]


def _attended(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    bias: Tensor,
    sinks: Tensor | None = None,
) -> Tensor:
    """Returns the values, weighted by the softmax of the scores: [..., queries, head_dim].

    `bias` [..., queries, keys] is added to the scores. `sinks` [..., queries or 1, 1] are scores
    without values, which take their share of the weights (Xiao et al. 2023, arXiv 2309.17453);
    torch's own attention does not support them.
    """
    if sinks is None:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=scale)
    scores = (queries * scale) @ keys.mT + bias
    scores = torch.cat((scores, sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)), -1)
    weights = scores.softmax(-1, dtype=torch.float32)[..., :-1]
    return weights.to(values.dtype) @ values
