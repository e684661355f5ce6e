"""This process's place among the ranks, as torchrun says it. Loads no torch."""

import os

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from inference_api.errors import StartupError


class RankSettings(BaseSettings):
    """Immutable. MASTER_ADDR and MASTER_PORT, where ranks meet, are read by torch."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    rank: int = Field(ge=0)
    world_size: int = Field(ge=2, le=256)
    local_world_size: int = Field(1, ge=1, description="Ranks on this machine.")


def load_rank_settings() -> RankSettings:
    """Raises StartupError."""
    try:
        return RankSettings()
    except ValidationError:
        given = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
        raise StartupError(
            [
                f"SPLIT needs the ranks that torchrun starts, 2 to 256, but it has said {given}; "
                "start with `hearth serve`, or as docs/pipeline.md says, or unset SPLIT."
            ]
        ) from None
