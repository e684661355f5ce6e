"""Ranks: which one this process is, from the environment, and the layers of each, in the order of
the ring."""

import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal, TypeAlias

from pydantic import Field, ValidationError

from common.startup import EnvironmentSettings
from inference_api.errors import StartupError
from inference_api.loading.config import LayerRange

LOOPBACK = "127.0.0.1"

Split: TypeAlias = tuple[int, ...]  # the number of layers of each rank


class RankSettings(EnvironmentSettings):
    """The variables that torchrun sets for each rank. Immutable."""

    rank: int = Field(ge=0)
    world_size: int = Field(ge=2, le=256)
    local_world_size: int = Field(1, ge=1)  # number of ranks on this machine
    local_rank: int = Field(0, ge=0)  # rank among these, which selects the GPU
    master_addr: str = LOOPBACK  # where rank 0 listens
    master_port: int = Field(29400, ge=1, le=65534)
    torchelastic_use_agent_store: bool = False
    """Whether torchrun itself listens at MASTER_PORT, so that rank 0 takes the next port."""

    @property
    def meeting_place(self) -> tuple[str, int]:
        return self.master_addr, self.master_port + self.torchelastic_use_agent_store


def local_rank(rank: int, num_ranks: int, port: int) -> Mapping[str, str]:
    """Returns the environment of a rank, if all ranks run on this machine and meet at `port`."""
    numbers = {"RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    numbers |= {"LOCAL_RANK": rank, "MASTER_PORT": port}
    return {"MASTER_ADDR": LOOPBACK} | {name: str(each) for name, each in numbers.items()}


def load_rank_settings() -> RankSettings:
    """Reads the environment. Raises StartupError."""
    try:
        return RankSettings()
    except ValidationError:
        found = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
        raise StartupError(
            f"SPLIT needs 2 to 256 ranks, but the environment says {found}; start with "
            "`hearth serve`, or as docs/pipeline.md says, or unset SPLIT."
        ) from None


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
