"""Attention over the KV cache: of a prompt's chunk, and of one step of many rows; and of both in
shapes that depend on no value, for steps that are recorded.

They are made once per model call, for all layers, and then called layer by layer with that layer's
queries [n, heads, head_dim], keys and values [n, kv_heads, head_dim] and, where the model has them,
sinks [heads]. They write keys and values to the cache and return [n, heads * head_dim].
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.loading.config import ModelConfig
from inference_api.runner import MAX_TREE_TOKENS


class Attention(Protocol):
    """Attention of a step, as a layer of the decoder calls it."""

    def __call__(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None
    ) -> Tensor: ...


class TokenPlace(NamedTuple):
    """Where a token that draws is, and what it follows."""

    row: int
    position: int
    slot: int
    branch: Sequence[int] | None = None
    """In a tree: slots of the last positions up to its own; earlier ones are in their own slots."""

    @property
    def branch_start(self) -> int:
        """The first position of the branch."""
        return self.position + 1 - len(self.branch or ())


class ChunkAttention:
    """A chunk of one row's prompt attends to itself and to what the row holds before it."""

    def __init__(
        self, config: ModelConfig, cache: TorchCache, row: int, start: int, num_tokens: int
    ) -> None:
        """`num_tokens` tokens, from position `start` on."""
        self._config = config
        self._cache = cache
        self._row = row
        self._start = start
        end = start + num_tokens
        positions = torch.arange(start, end, device=cache.keys.device).unsqueeze(-1)
        self._views = {}
        for window in set(config.windows):
            first = _first_seen(start, window)
            seen = torch.arange(first, end, device=cache.keys.device)
            mask = seen <= positions  # [tokens, seen positions]
            if window is not None:
                mask &= seen > positions - window
            self._views[window] = (*cache.slices(row, first, end), _bias(mask, cache))

    def __call__(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None
    ) -> Tensor:
        self._cache.write_chunk(layer, self._row, self._start, keys, values)
        row_keys, row_values, bias = self._views[self._config.windows[layer]]
        return _chunk_attended(
            queries, row_keys[layer], row_values[layer], self._config, bias, sinks
        )


class StepAttention:
    """Each token attends to its own row, up to its own position.

    A call per row is faster than one masked call, which reads every row as far as the longest one
    goes, and it makes a row's sums independent of the others. The query heads that share a
    key-value head stand where a sequence would, so that keys are read once and never copied.
    """

    def __init__(
        self,
        config: ModelConfig,
        cache: TorchCache,
        tokens: Sequence[TokenPlace],
        num_padding: int,
    ) -> None:
        """The batch ends with `num_padding` tokens of no meaning: they get zeros."""
        self._config = config
        self._cache = cache
        self._tokens = tokens
        index = [[each.row for each in tokens], [each.slot for each in tokens]]
        self._index = torch.tensor(index, device=cache.keys.device)
        self._views = {
            window: [
                cache.slices(each.row, _first_seen(each.position, window), each.position + 1)
                for each in tokens
            ]
            for window in set(config.windows)
        }
        self._padding = cache.keys.new_zeros(
            num_padding, config.num_kv_heads, config.num_groups, config.head_dim
        )

    def __call__(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None
    ) -> Tensor:
        rows, slots = self._index
        num_rows = len(rows)
        self._cache.write_step(layer, rows, slots, keys[:num_rows], values[:num_rows])
        views = self._views[self._config.windows[layer]]
        by_group = _by_group(sinks, self._config)
        attended = [
            _attended(
                query,
                *self._seen(layer, token, row_keys[layer], row_values[layer]),
                self._config.attention_scale,
                sinks=by_group,
            )  # [1, kv_heads, groups, head_dim]
            for query, token, (row_keys, row_values) in zip(
                _grouped(queries[:num_rows], self._config).split_with_sizes([1] * num_rows),
                self._tokens,
                views,
                strict=True,
            )
        ]
        return torch.cat([*attended, self._padding]).flatten(1)

    def _seen(
        self, layer: int, token: TokenPlace, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The token's keys and values: as they lie in the cache or, of a tree, brought together."""
        if token.branch is None:
            return keys, values
        slots = [*range(token.branch_start), *token.branch]
        return self._cache.gathered(layer, token.row, slots, num_seen=keys.shape[2])


class FixedAttention:
    """One token of every user row, in shapes that depend on no value: see `FixedStepDecoder`.

    Rows share a masked call per length, and each takes the result of the shortest that reaches its
    position. So a row's sums have the same shape however far its neighbours are. A token without a
    position is absent: it changes nothing that a row holds, and its result means nothing.
    """

    def __init__(
        self, config: ModelConfig, cache: TorchCache, positions: Tensor, lengths: Sequence[int]
    ) -> None:
        """`positions` [max_rows], negative where absent. `lengths` ascend; the last is above every
        position."""
        self._config = config
        self._cache = cache
        rows = torch.arange(len(positions), device=positions.device)
        self._own_index = rows, _own_slots(positions, positions, cache)
        reached = positions.clamp(min=0).view(-1, 1, 1, 1)
        *shorter, self._longest = lengths
        self._is_within = {length: reached < length for length in reversed(shorter)}
        self._biases = _fixed_biases(config, cache, reached, self._longest)

    def __call__(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None
    ) -> Tensor:
        self._cache.write_step(layer, *self._own_index, keys, values)
        seen_keys, seen_values = self._seen(self._cache.keys[layer], self._cache.values[layer])
        queries, sinks = _grouped(queries, self._config), _by_group(sinks, self._config)
        bias = self._biases[self._config.windows[layer]]

        def attend(length: int) -> Tensor:
            """Every row to its first `length` places: [rows, kv_heads, groups, head_dim]."""
            return _attended(
                queries,
                seen_keys[:, :, :length],
                seen_values[:, :, :length],
                self._config.attention_scale,
                bias[..., :length],
                sinks,
            )

        attended = attend(self._longest)
        for length, is_within in self._is_within.items():
            attended = torch.where(is_within, attend(length), attended)
        return attended.flatten(1)

    def _seen(self, *of_layer: Tensor) -> Sequence[Tensor]:
        """Keys and values, [rows, kv_heads, at least the longest length, head_dim]."""
        return of_layer


class FixedTokenAttention(FixedAttention):
    """Attends from as many tokens as there are rows, of any rows. Gathers each token's keys first,
    so that its bits are those of a plain decode step."""

    def __init__(
        self,
        config: ModelConfig,
        cache: TorchCache,
        places: Tensor,
        lengths: Sequence[int],
        slots: Tensor,
    ) -> None:
        """`places` [3, tokens]: positions, rows and their own slots. `slots` [tokens, capacity] are
        those of all positions up to a token's own: other than the position only for the last
        MAX_TREE_TOKENS, and of no meaning behind it."""
        positions, rows, own_slots = places
        super().__init__(config, cache, positions, lengths)
        self._own_index = rows, _own_slots(own_slots, positions, cache)
        kv_heads, device = cache.keys.shape[2], positions.device
        self._head_rows = rows[:, None] * kv_heads + torch.arange(kv_heads, device=device)
        back = torch.arange(MAX_TREE_TOKENS, device=device)
        tail = (positions[:, None] - back).clamp(min=0)  # [tokens, MAX_TREE_TOKENS]
        columns = torch.arange(len(positions), device=device)[:, None]
        self._tail = columns, slice(None), tail
        self._tail_slots = rows[:, None], slice(None), slots.gather(1, tail)

    def _seen(self, *of_layer: Tensor) -> Sequence[Tensor]:
        return [self._copied(each) for each in of_layer]

    def _copied(self, of_rows: Tensor) -> Tensor:
        """Whole heads are copied, as they lie; then what a tree has elsewhere."""
        copies = of_rows.flatten(0, 1)[:, : self._longest][self._head_rows]
        copies[self._tail] = of_rows[self._tail_slots]
        return copies


class FixedChunkAttention:
    """`ChunkAttention` in shapes that depend on no value, of the first tokens that are not absent:
    see `FixedAttention`."""

    def __init__(
        self, config: ModelConfig, cache: TorchCache, rows: Tensor, positions: Tensor, length: int
    ) -> None:
        """`rows` [tokens] are all the same, `positions` [tokens] below `length`."""
        self._config = config
        self._cache = cache
        self._length = length
        self._row = rows[:1]
        self._own_index = rows, _own_slots(positions, positions, cache)
        self._biases = _fixed_biases(config, cache, positions.clamp(min=0)[:, None], length)

    def __call__(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None
    ) -> Tensor:
        self._cache.write_step(layer, *self._own_index, keys, values)
        keys, values = (
            each[layer, :, :, : self._length].index_select(0, self._row)
            for each in (self._cache.keys, self._cache.values)
        )
        bias = self._biases[self._config.windows[layer]]
        return _chunk_attended(queries, keys, values, self._config, bias, sinks)


def _own_slots(slots: Tensor, positions: Tensor, cache: TorchCache) -> Tensor:
    """Where tokens are written: absent ones to the last slot, which `SPARE_SLOTS` keeps free."""
    return torch.where(positions >= 0, slots, cache.keys.shape[3] - 1)


def _fixed_biases(
    config: ModelConfig, cache: TorchCache, reached: Tensor, length: int
) -> dict[int | None, Tensor]:
    """Returns a bias for each window: queries at `reached` [..., 1], first `length` places."""
    places = torch.arange(length, device=reached.device)
    biases = {}
    for window in set(config.windows):
        mask = places <= reached
        if window is not None:
            mask &= places > reached - window
        biases[window] = _bias(mask, cache)
    return biases


def _first_seen(position: int, window: int | None) -> int:
    """The first position that a token at `position` sees: a window counts the token itself."""
    return 0 if window is None else max(0, position + 1 - window)


def _bias(mask: Tensor, cache: TorchCache) -> Tensor:
    """Returns the additive mask: 0 where `mask` is true, else minus infinity. Made once a step;
    given the mask itself, torch would make it again in each layer."""
    return cache.keys.new_zeros(mask.shape).masked_fill(~mask, -torch.inf)


def _grouped(queries: Tensor, config: ModelConfig) -> Tensor:
    """[n, heads, head_dim] as [n, kv_heads, groups, head_dim]."""
    return queries.view(-1, config.num_kv_heads, config.num_groups, config.head_dim)


def _by_group(sinks: Tensor | None, config: ModelConfig) -> Tensor | None:
    """[heads] as [kv_heads, groups, 1]."""
    return None if sinks is None else sinks.view(config.num_kv_heads, config.num_groups, 1)


def _chunk_attended(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    config: ModelConfig,
    bias: Tensor,
    sinks: Tensor | None,
) -> Tensor:
    """Queries [tokens, heads, head_dim] of one row over its keys and values [1, kv_heads, n,
    head_dim]: [tokens, heads * head_dim]. `bias` [tokens, n]: see `_bias`."""
    queries = _grouped(queries, config).permute(1, 2, 0, 3)
    keys, values = (
        each.transpose(0, 1).expand(-1, config.num_groups, -1, -1) for each in (keys, values)
    )  # [kv_heads, groups, n, head_dim], without a copy
    scale = config.attention_scale
    if sinks is None and _loses_last(queries):
        parts = zip(queries.split(len(bias) - 1, 2), bias.split(len(bias) - 1), strict=True)
        attended = torch.cat([_attended(q, keys, values, scale, own) for q, own in parts], 2)
    elif sinks is None:
        attended = _attended(queries, keys, values, scale, bias)
    else:  # a key-value head at a time: its scores take memory
        of_heads = sinks.view(*queries.shape[:2], 1, 1)
        heads = zip(queries, keys, values, of_heads, strict=True)
        attended = torch.stack([_attended(q, k, v, scale, bias, sink) for q, k, v, sink in heads])
    return attended.permute(2, 0, 1, 3).flatten(1)  # from [kv_heads, groups, tokens, head_dim]


def _loses_last(queries: Tensor) -> bool:
    """Whether torch gets the last of several queries wrong where there is a bias. On an H200, torch
    2.11 does in float32 with 65 and 129 queries, and with 64, 66, 100, 127 and 128 it does not."""
    is_affected = queries.is_cuda and queries.dtype == torch.float32
    return is_affected and queries.shape[2] % 64 == 1 < queries.shape[2]


def _attended(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Softmax of the scores, over the values: [..., queries, head_dim].

    `bias` [..., queries, keys]: see `_bias`. `sinks` [..., queries or 1, 1] are scores without
    values: they take their share of the weights (Xiao et al. 2023, arXiv 2309.17453), and torch's
    own attention has none.
    """
    if sinks is None:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=scale)
    scores = (queries * scale) @ keys.mT
    if bias is not None:
        scores = scores + bias
    scores = torch.cat((scores, sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)), -1)
    weights = scores.softmax(-1, dtype=torch.float32)[..., :-1]
    return weights.to(values.dtype) @ values
