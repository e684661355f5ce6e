"""Rotary position embedding by torch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inference_api.engine.rope import Floats, LayerTurns, RopeTurns
from inference_api.loading.config import ModelConfig


class TensorTurns(NamedTuple):
    """`LayerTurns` as tensors, with a dimension for heads."""

    cosines: Tensor  # [n, 1, rotary_dim]
    sines: Tensor  # like cosines
    query_scales: Tensor | None  # [n, 1, 1]


class Rope:
    """The turns of all layers for every position of a context. Immutable."""

    def __init__(
        self, config: ModelConfig, max_seq_len: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        rope = RopeTurns(config, max_seq_len)
        rope.reach(max_seq_len)

        def tensor(array: Floats) -> Tensor:
            return torch.from_numpy(array).view(max_seq_len, 1, -1).to(device, dtype)

        self._keys = [id(turns) for turns in rope.layers]
        tables = {id(turns): turns for turns in rope.layers if turns is not None}
        self._tables = {key: _mapped(tensor, turns) for key, turns in tables.items()}

    def of_layer(self, layer: int) -> TensorTurns | None:
        """Returns a layer's turns for every position; None if it has no rope."""
        return self._tables.get(self._keys[layer])

    def at(self, positions: Tensor) -> list[TensorTurns | None]:
        """Returns each layer's turns for `positions` [n]. Layers that turn alike share tensors."""
        turns = {
            key: _mapped(lambda table: table[positions], tables)
            for key, tables in self._tables.items()
        }
        return [turns.get(key) for key in self._keys]


def _mapped(make: Callable[[Any], Tensor], turns: LayerTurns | TensorTurns) -> TensorTurns:
    scales = turns.query_scales
    tables = make(turns.cosines), make(turns.sines)
    return TensorTurns(*tables, None if scales is None else make(scales))


def turn(heads: Tensor, turns: TensorTurns) -> None:
    """Turn `heads` [n, heads, head_dim] in place."""
    turned = heads[..., : turns.cosines.shape[-1]]
    swapped = turned.roll(turned.shape[-1] // 2, dims=-1)
    turned.mul_(turns.cosines).add_(swapped.mul_(turns.sines))
