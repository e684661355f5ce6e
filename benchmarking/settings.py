"""Settings from the environment: the server's address and the API key, which no file may have."""

import re
from functools import partial
from urllib.parse import parse_qs, quote

from pydantic import AliasChoices, Field, SecretStr, field_validator

from benchmarking.errors import InvalidConfig
from common.addresses import http_parts
from common.startup import EnvironmentSettings, read_settings

CREDENTIALS = {"key", "api_key", "api-key", "apikey", "token", "access_token", "password", "sig"}
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
OUR_HEADERS = {"host", "content-type", "content-length", "connection", "accept-encoding"}
URL_CHARS = "/%:@!$&'()*+,;=~?"  # characters that are not percent-encoded in a path or query


class Settings(EnvironmentSettings):
    """Immutable. The second name of each setting is that of other clients of this format."""

    api_base: str = Field(
        "http://127.0.0.1:7000/v1",
        validation_alias=AliasChoices("BENCHMARK_API_BASE", "SAMBANOVA_API_BASE"),
    )
    api_key: SecretStr | None = Field(
        None, validation_alias=AliasChoices("BENCHMARK_API_KEY", "SAMBANOVA_API_KEY")
    )

    @field_validator("api_base")
    @classmethod
    def _check_base(cls, base: str) -> str:
        return checked_base(base)

    @field_validator("api_key")
    @classmethod
    def _check_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key and not _fits_a_header(key.get_secret_value()):
            raise ValueError("has characters that no header can carry")
        return key


def load_settings() -> Settings:
    """Reads the environment. Raises InvalidConfig, whose message has no values."""
    return read_settings(Settings, partial(InvalidConfig, "the environment"))


def checked_base(base: str) -> str:
    """Returns a server's address without a slash at its end. No ValueError has a part of it."""
    parts = http_parts(base)
    if "@" in parts.netloc or CREDENTIALS & {name.lower() for name in parse_qs(parts.query)}:
        raise ValueError(
            "holds credentials, and addresses are written to files; put a key into "
            "BENCHMARK_API_KEY, anything else into --header NAME=VALUE"
        )
    path, query = (quote(each, URL_CHARS) for each in (parts.path.rstrip("/"), parts.query))
    return parts._replace(path=path, query=query, fragment="").geturl()


def checked_header(text: str) -> tuple[str, SecretStr]:
    """Reads NAME=VALUE. Raises ValueError, whose message has no values."""
    name, equals, value = text.partition("=")
    if not equals or not HEADER_NAME.fullmatch(name) or name.lower() in OUR_HEADERS:
        raise ValueError(
            "write NAME=VALUE, with the name of a header that the client leaves to you"
        )
    if not _fits_a_header(value):
        raise ValueError(f"{name} has characters that no header can carry")
    return name, SecretStr(value)


def _fits_a_header(value: str) -> bool:
    return value.isascii() and value.isprintable() and value == value.strip()
