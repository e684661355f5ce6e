"""The rank of this process, from the environment."""

import os
from collections.abc import Mapping

from pydantic import Field, ValidationError

from common.startup import EnvironmentSettings
from inference_api.errors import StartupError

LOOPBACK = "127.0.0.1"


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
