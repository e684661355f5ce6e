"""Settings from the environment, read once at start. Immutable: any thread."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasGenerator, Field
from pydantic_settings import SettingsConfigDict

from common.addresses import REDIS, Hosts
from common.paths import UserPath
from common.startup import ServiceSettings, read_settings
from optimizer.errors import StartupError


class Settings(ServiceSettings):
    """The documented variables; some have the reference's names. A wrong value stops the start."""

    model_config = SettingsConfigDict(
        populate_by_name=True,
        alias_generator=AliasGenerator(validation_alias=lambda name: f"OPTIMIZER_{name}".upper()),
    )

    host: str = Field(default="localhost", validation_alias="INFERNO_HOST")
    port: int = Field(default=8080, ge=0, le=65535, validation_alias="INFERNO_PORT")
    allowed_hosts: Hosts = Field(default=(), validation_alias="ALLOWED_HOSTS")
    stateful: bool = False
    redis_url: Annotated[str, REDIS] = Field(default="", validation_alias="REDIS_URL")
    store_path: UserPath = Path("var/optimizer.db")
    threads: int = Field(default=16, ge=1, le=512)
    max_body_bytes: int = Field(default=16 * 2**20, ge=1024)
    unknown_keys: Literal["refuse", "ignore"] = "refuse"
    namespace: str = Field(default="default", max_length=253)
    milp_time_limit_s: float = Field(default=10.0, gt=0, le=3600)
    milp_relative_gap: float = Field(default=0.001, ge=0, le=1)
    min_gain_percent: float = Field(default=0.0, ge=0, le=100)
    hold_minutes: float = Field(default=0.0, ge=0, le=1e6)


def load_settings() -> Settings:
    """Reads the environment. Raises StartupError with every fault."""
    return read_settings(Settings, StartupError)
