"""Attention by the kernels, over a float32 cache: chunks and steps by one way of calling them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from inference_api.engine.attention import Attention
from inference_api.engine.config import ModelConfig
from inference_api.engine.kv_cache import KVCache
from inference_api.kernels.library import MAX_HEAD_DIM, Kernels


class KernelAttentions:
    """Makes the attention of a model call. See `Attentions`."""

    def __init__(self, config: ModelConfig, cache: KVCache, kernels: Kernels) -> None:
        self._config = config
        self._cache = cache
        self._kernels = kernels

    @staticmethod
    def can_serve(config: ModelConfig, dtype: torch.dtype) -> bool:
        return dtype == torch.float32 and config.head_dim <= MAX_HEAD_DIM

    def chunk(self, row: int, start: int, num_tokens: int) -> Attention:
        lengths = torch.arange(start + 1, start + num_tokens + 1)
        rows = torch.full((num_tokens,), row)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self._cache.write_chunk(layer, row, start, keys, values)
            return self._attend(layer, queries, rows, lengths)

        return attend

    def step(self, rows: Sequence[int], positions: Sequence[int], num_padding: int) -> Attention:
        assert num_padding == 0
        row_index, places = torch.tensor([rows, positions])
        lengths = places + 1

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self._cache.write_step(layer, row_index, places, keys, values)
            return self._attend(layer, queries, row_index, lengths)

        return attend

    def _attend(self, layer: int, queries: Tensor, rows: Tensor, lengths: Tensor) -> Tensor:
        cache = self._cache
        scale, window = self._config.attention_scale, self._config.windows[layer]
        return self._kernels.attention(
            queries, cache.keys[layer], cache.values[layer], rows, lengths, scale, window
        )
