"""Every setting of the proxy: one frozen object, read once from the environment.

No other module of the package reads the environment. Each variable is named here with its default
and bounds; `docs/proxy.md` explains them. `Settings.load` reports every fault at once.
"""

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, SecretStr, ValidationError

from common.addresses import LOCAL, REDIS, BaseUrl, HttpUrl, Origins, Words
from common.faults import setting_faults
from common.files import append_whole
from common.logs import LogFormat, LogLevel
from common.paths import UserFile, UserPath
from common.startup import EnvironmentSettings
from proxy.errors import StartupError

SYMMETRIC_ALGORITHMS = frozenset({"HS256", "HS384", "HS512"})
ASYMMETRIC_ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
# RFC 7518, section 3.2: a key at least as large as the hash, which is 32 bytes for SHA-256.
MIN_SECRET_BYTES = 32

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86400)]


def _writable(path: Path) -> Path:
    try:
        append_whole(path, b"")
    except OSError as error:
        raise ValueError(f"cannot be written ({error.strerror}); name a file that can") from None
    return path


class Settings(EnvironmentSettings):
    """The settings. Immutable. `SecretStr` keeps secrets out of logs, tracebacks and `repr`."""

    proxy_host: str = "127.0.0.1"
    proxy_port: Port = 1223
    proxy_processes: Annotated[int, Field(ge=1, le=64)] = 1
    # Limits for each process:
    proxy_connections: Annotated[int, Field(ge=64, le=1_000_000)] = 12_000
    proxy_requests: Annotated[int, Field(ge=8, le=1_000_000)] = 10_000
    proxy_metrics_host: str = "127.0.0.1"
    proxy_metrics_port: Annotated[int, Field(ge=0, le=65535)] = 1224  # 0: none

    upstream: str = "http://127.0.0.1:7000"
    upstreams_file: UserFile | None = None
    upstreams_service: str | None = None
    routes_file: UserFile | None = None
    upstream_keys: UserFile | None = None
    kubernetes_api: BaseUrl = "https://kubernetes.default.svc"
    kubernetes_account: UserPath = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    cluster_url: BaseUrl | None = None
    upstream_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    connect_timeout: Seconds = 5.0
    first_byte_timeout: Seconds = 600.0
    stream_stall_timeout: Seconds = 60.0
    queue_timeout: Seconds = 30.0
    queue_size: Annotated[int, Field(ge=0, le=100_000)] = 1024
    head_timeout: Seconds = 5.0
    body_timeout: Seconds = 10.0
    min_body_rate: Annotated[int, Field(ge=1, le=2**30)] = 16_384
    keepalive_timeout: Seconds = 75.0
    client_timeout: Seconds = 60.0
    max_waiting_per_address: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    drain_timeout: Seconds = 60.0
    health_interval: Annotated[float, Field(gt=0, le=30)] = 2.0
    max_content_length: Annotated[int, Field(ge=1024)] = 4 * 1024 * 1024

    jwt_secret: SecretStr | None = None
    jwt_secret_previous: SecretStr | None = None
    jwt_algorithms: Words = ("HS256",)
    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    jwt_leeway_seconds: Annotated[float, Field(ge=0, le=600)] = 30.0
    jwt_require_expiry: bool = False  # the documented example token has no expiry
    jwt_role_claim: str | None = None  # None: `role`, only in tokens of JWT_SECRET
    jwks_file: UserFile | None = None
    jwks_url: HttpUrl | None = None
    revoked_tokens_file: UserFile | None = None

    cors_origins: Origins = (LOCAL,)  # `*`: any

    policy_file: UserFile | None = None
    redis_url: Annotated[SecretStr, REDIS] | None = None

    audit_file: Annotated[UserPath, AfterValidator(_writable)] | None = None  # standard output
    log_level: LogLevel = "INFO"
    log_format: LogFormat = "text"

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the environment; `overrides` (from the command line) take precedence. Raises
        StartupError with every fault, including those between fields."""
        faults, bad_fields = [], set[str]()
        try:
            settings = cls(**overrides)
        except ValidationError as error:
            faults = setting_faults(error)
            bad_fields = {str(item["loc"][0]).lower() for item in error.errors() if item["loc"]}
            # With defaults for the bad fields, the other fields can still be checked.
            defaults = {name: cls.model_fields[name].default for name in bad_fields}
            settings = cls(**{**overrides, **defaults})
        reported = tuple(f"{name.upper()} " for name in bad_fields)
        faults += [each for each in settings.faults() if not each.startswith(reported)]
        if faults:
            raise StartupError(faults)
        return settings

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets of tokens, the current one first."""
        both = (self.jwt_secret, self.jwt_secret_previous)
        return tuple(secret.get_secret_value() for secret in both if secret is not None)

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.proxy_host).is_loopback
        except ValueError:
            return self.proxy_host == "localhost"

    @property
    def weak_secrets(self) -> tuple[str, ...]:
        """The names of the variables that hold a secret under MIN_SECRET_BYTES."""
        named = {"JWT_SECRET": self.jwt_secret, "JWT_SECRET_PREVIOUS": self.jwt_secret_previous}
        return tuple(
            name
            for name, secret in named.items()
            if secret is not None and len(secret.get_secret_value().encode()) < MIN_SECRET_BYTES
        )

    def faults(self) -> Iterator[str]:
        """Yields faults between fields that are each valid."""
        algorithms = set(self.jwt_algorithms)
        has_jwks = self.jwks_file is not None or self.jwks_url is not None
        if not algorithms:
            yield "JWT_ALGORITHMS is empty; name at least one, such as HS256"
        names = ", ".join(sorted(SYMMETRIC_ALGORITHMS | ASYMMETRIC_ALGORITHMS))
        for name in sorted(algorithms - SYMMETRIC_ALGORITHMS - ASYMMETRIC_ALGORITHMS):
            yield f"JWT_ALGORITHMS: '{name}' is not one of {names}"
        if algorithms & SYMMETRIC_ALGORITHMS and self.jwt_secret is None:
            yield "JWT_SECRET is not set; make one: `python scripts/jwt_util.py generate-secret`"
        if algorithms & ASYMMETRIC_ALGORITHMS and not has_jwks:
            yield "JWT_ALGORITHMS names a public-key algorithm; set JWKS_FILE or JWKS_URL"
        if has_jwks and not algorithms & ASYMMETRIC_ALGORITHMS:
            yield "JWKS_FILE or JWKS_URL is set; add its algorithm, like RS256, to JWT_ALGORITHMS"
        if self.upstreams_file is not None and self.upstreams_service is not None:
            yield "UPSTREAMS_FILE and UPSTREAMS_SERVICE are both set; keep one"
        if self.jwks_file is not None and self.jwks_url is not None:
            yield "JWKS_FILE and JWKS_URL are both set; keep one"
        if self.proxy_processes > 1 and self.policy_file and self.redis_url is None:
            yield (
                f"PROXY_PROCESSES={self.proxy_processes} with a POLICY_FILE: set REDIS_URL, which "
                "counts what a team uses in all of them, or PROXY_PROCESSES=1"
            )
        for name in () if self.is_loopback else self.weak_secrets:
            yield (
                f"{name} is under {MIN_SECRET_BYTES} bytes and PROXY_HOST={self.proxy_host} "
                "is not loopback; use a longer secret"
            )
