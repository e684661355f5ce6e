"""Settings from the environment, and errors that prevent a process from starting. One message has
all of them, each with its remedy."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from common.faults import setting_faults

MAX_FAULT_CHARS = 2000  # a file may have a name or a value of megabytes


class StartupError(Exception):
    """The process cannot start. Each service has a subclass that names it."""

    service: str

    def __init__(self, faults: str | Sequence[str]) -> None:
        """`faults` is one sentence, or several."""
        faults = (faults,) if isinstance(faults, str) else faults
        faults = tuple(each[:MAX_FAULT_CHARS] for each in faults)
        lines = "\n".join(f"  - {fault}" for fault in faults)
        super().__init__(f"{self.service} cannot start:\n{lines}")
        self.faults = faults


class EnvironmentSettings(BaseSettings):
    """Base class of settings from environment variables. Immutable. Empty ones count as unset."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True)

    @field_validator("*", mode="before")
    @classmethod
    def _check_text(cls, value: object) -> object:
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:  # Python reads other bytes as halves of surrogate pairs
                raise ValueError("is not UTF-8") from None
        return value


class ServiceSettings(EnvironmentSettings):
    """The settings of a small service that runs in a process of its own (common.launcher)."""

    host: str
    port: int
    threads: int
    max_body_bytes: int


SettingsT = TypeVar("SettingsT", bound=BaseModel)


def read_settings(
    settings: type[SettingsT], refusal: Callable[[list[str]], Exception], **overrides: object
) -> SettingsT:
    """Reads the environment; `overrides` take precedence. Raises `refusal` with every fault."""
    try:
        return settings(**overrides)
    except ValidationError as error:
        raise refusal(setting_faults(error)) from None
