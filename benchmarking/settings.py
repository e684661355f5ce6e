"""Settings from the environment: address and API key, which belong in no file."""

from pydantic import AliasChoices, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from benchmarking.errors import InvalidConfig
from common.startup import faults_of


class Settings(BaseSettings):
    """Immutable. The second name of each is the one that other clients of this format read."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True)

    api_base: str = Field(
        "http://127.0.0.1:7000/v1",
        validation_alias=AliasChoices("BENCHMARK_API_BASE", "SAMBANOVA_API_BASE"),
    )
    api_key: SecretStr | None = Field(
        None, validation_alias=AliasChoices("BENCHMARK_API_KEY", "SAMBANOVA_API_KEY")
    )

    @field_validator("api_key")
    @classmethod
    def _check_it_fits_a_header(cls, key: SecretStr | None) -> SecretStr | None:
        value = key.get_secret_value() if key else ""
        if not (value.isascii() and value.isprintable()) or value != value.strip():
            raise ValueError("has characters that no header can carry")
        return key


def load_settings() -> Settings:
    """Raises InvalidConfig; the message holds no value."""
    try:
        return Settings()
    except ValidationError as error:
        raise InvalidConfig("the environment", faults_of(error)) from None
