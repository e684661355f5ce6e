"""Splits: the number of layers of each rank, in the ring's order."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, TypeAlias

from inference_api.errors import StartupError
from inference_api.loading.config import LayerRange

Split: TypeAlias = tuple[int, ...]


def equal_split(num_layers: int, num_ranks: int) -> Split:
    """Returns equal shares, with the remaining layers on the first ranks. Raises StartupError."""
    each, more = divmod(num_layers, num_ranks)
    return checked(tuple(each + (rank < more) for rank in range(num_ranks)), num_layers, num_ranks)


def resolved(requested: Split | Literal["auto"], num_layers: int, num_ranks: int) -> Split:
    """Returns the split that was asked for, or equal shares for `auto`. Raises StartupError."""
    if requested == "auto":
        return equal_split(num_layers, num_ranks)
    return checked(requested, num_layers, num_ranks)


def checked(split: Split, num_layers: int, num_ranks: int) -> Split:
    """Returns the split. Raises StartupError unless it has all layers, and one or more per rank."""
    shown = f"SPLIT={','.join(map(str, split))}"
    if len(split) != num_ranks:
        fault = f"{shown} is for {len(split)} ranks, but {num_ranks} were started"
    elif sum(split) != num_layers:
        fault = f"{shown} has {sum(split)} layers, but the model has {num_layers}"
    elif min(split) < 1:
        fault = f"{shown} leaves a rank without layers; start fewer ranks"
    else:
        return split
    raise StartupError(f"{fault}; set as many numbers as ranks, with the model's sum, or auto.")


def layers_of(split: Sequence[int], rank: int) -> LayerRange:
    end = list(accumulate(split))[rank]
    return LayerRange(end - split[rank], end)
