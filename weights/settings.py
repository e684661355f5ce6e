"""Settings from the environment, read once at start. Immutable: any thread."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from common.addresses import REDIS, Hosts
from common.paths import UserPath
from common.startup import ServiceSettings, read_settings
from weights.errors import StartupError
from weights.samplers import SamplerName


class Settings(ServiceSettings):
    """The documented variables. A wrong value prevents the start."""

    model_config = SettingsConfigDict(populate_by_name=True)

    host: str = Field(default="127.0.0.1", validation_alias="WEIGHTS_HOST")
    port: int = Field(default=8001, ge=0, le=65535, validation_alias="WEIGHTS_PORT")
    allowed_hosts: Hosts = Field(default=(), validation_alias="ALLOWED_HOSTS")
    redis_url: Annotated[str, REDIS] = Field(default="", validation_alias="REDIS_URL")
    db_path: UserPath = Field(default=Path("var/weights.db"), validation_alias="WEIGHTS_DB")
    sampler: SamplerName = Field(default="adaptive", validation_alias="WEIGHTS_SAMPLER")
    threads: int = Field(default=16, ge=1, le=512, validation_alias="WEIGHTS_THREADS")
    max_body_bytes: int = Field(
        default=16 * 2**20, ge=1024, le=2**30, validation_alias="WEIGHTS_MAX_BODY_BYTES"
    )


def load_settings() -> Settings:
    """Reads the environment. Raises StartupError with every fault."""
    return read_settings(Settings, StartupError)
