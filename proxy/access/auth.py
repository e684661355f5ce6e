"""Authentication: turns an Authorization header into a Principal, or raises Unauthorized.

Allowed algorithms come from the settings, never from the token, and each algorithm is used only
with keys of its own kind (`keys`). Any thread.
"""

import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import jwt

from common.tokens import IGNORED_CLAIMS
from proxy.access.keys import Key, KeySource
from proxy.access.roles import Role
from proxy.errors import Unauthorized
from proxy.settings import SYMMETRIC_ALGORITHMS, Settings

MAX_TOKEN_CHARS = 8192
# Tokens with a checked signature that are cached, so that later requests of a client are cheaper.
MAX_CACHED_TOKENS = 4096
_COMPACT_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
# Team and token id are sent upstream in headers and label records: printable ASCII, no spaces.
_CLAIM_ID = re.compile(r"[!-~]{1,128}")
ROLE_CLAIM = "role"


@dataclass(frozen=True, slots=True)
class Principal:
    """The team and token on whose behalf a request is made."""

    team_id: str
    token_id: str
    role: Role = Role.TEAM
    expires_s: float | None = None  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Checks tokens. Any thread.

    A token of a shared secret is cached once it has been checked; its expiry and revocation are
    checked each time. Public keys change, so tokens signed with them are checked every time.
    """

    settings: Settings
    key_sources: Sequence[KeySource]
    revoked_ids: Callable[[], Collection[str]]
    _principals: dict[str, Principal] = field(default_factory=dict, repr=False)  # keyed by header

    @property
    def may_block(self) -> bool:
        """Whether a check may wait for the network, and must not run in an event loop."""
        return self.settings.jwks_url is not None

    def authenticate(self, authorization: str | None) -> Principal:
        """Returns the caller of an Authorization header. Raises Unauthorized with the reason."""
        principal = self._principals.get(authorization or "")
        if principal is None or not self._is_current(principal):
            principal = self._check(authorization)
        if principal.token_id in self.revoked_ids():
            raise Unauthorized(f"token_id {principal.token_id} is revoked")
        return principal

    def _is_current(self, principal: Principal) -> bool:
        """Returns whether a token that was valid before still is."""
        expires_s = principal.expires_s
        return expires_s is None or time.time() < expires_s + self.settings.jwt_leeway_seconds

    def _check(self, authorization: str | None) -> Principal:
        token = bearer_token(authorization)
        try:
            claims, algorithm = self._verify(token)
            expires_s = float(claims["exp"]) if "exp" in claims else None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            # ValueError and TypeError: odd header values in the library's own parsing.
            # OverflowError: an expiry beyond any float.
            raise Unauthorized(f"{type(error).__name__}: {error}") from error
        principal = Principal(
            _claim_id(claims, "team_id"),
            _claim_id(claims, "token_id"),
            claimed_role(claims, algorithm, self.settings.jwt_role_claim),
            expires_s,
        )
        if algorithm in SYMMETRIC_ALGORITHMS:
            if len(self._principals) >= MAX_CACHED_TOKENS:
                self._principals.clear()
            self._principals[authorization or ""] = principal
        return principal

    def _verify(self, token: str) -> tuple[dict[str, Any], str]:
        """Returns the claims, and the algorithm of their signature."""
        header = jwt.get_unverified_header(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self.settings.jwt_algorithms:
            raise jwt.InvalidAlgorithmError(f"alg {algorithm!r} is not allowed here")
        failure: jwt.PyJWTError = jwt.InvalidKeyError(f"no key for alg {algorithm}, kid {key_id!r}")
        for source in self.key_sources:
            for key in source(algorithm, key_id):
                try:
                    return self._decode(token, key, algorithm), algorithm
                except jwt.InvalidSignatureError as error:
                    failure = error  # the other secret may fit
        raise failure

    def _decode(self, token: str, key: Key, algorithm: str) -> dict[str, Any]:
        settings = self.settings
        required = {
            "exp": settings.jwt_require_expiry,
            "iss": settings.jwt_issuer is not None,
            "aud": settings.jwt_audience is not None,
        }
        return jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            issuer=settings.jwt_issuer,
            audience=settings.jwt_audience,
            leeway=settings.jwt_leeway_seconds,
            # An audience claim matters only if an audience is configured.
            options={
                **IGNORED_CLAIMS,
                "require": [name for name, is_required in required.items() if is_required],
                "verify_aud": required["aud"],
            },
        )


def claimed_role(claims: dict[str, Any], algorithm: str, role_claim: str | None) -> Role:
    """Returns the role that a token claims. A claim of an identity provider with the same name may
    mean something else, so it counts only if the settings name it, as `role_claim`."""
    is_ours = algorithm in SYMMETRIC_ALGORITHMS
    name = role_claim or (ROLE_CLAIM if is_ours else None)
    return Role.named(claims.get(name)) if name else Role.TEAM


def parse_revoked(text: str) -> frozenset[str]:
    """Parses the revocation file: one token_id per line; blank lines and # comments are skipped. An
    id may contain a #. If no space comes before a #, both readings are revoked."""
    words = [word for line in text.splitlines() for word in line.split(maxsplit=1)[:1]]
    return frozenset(words) | frozenset(word.partition("#")[0] for word in words) - {""}


def bearer_token(authorization: str | None) -> str:
    """Returns the token of `Authorization: Bearer <token>`, with the scheme in any case."""
    if not authorization:
        raise Unauthorized("no Authorization header", is_token_present=False)
    scheme, _, token = authorization.partition(" ")
    token = token.strip(" ")
    if scheme.lower() != "bearer":
        raise Unauthorized("the scheme is not Bearer", is_token_present=False)
    if len(token) > MAX_TOKEN_CHARS:
        raise Unauthorized(f"the token has {len(token)} characters, at most {MAX_TOKEN_CHARS}")
    # Two Authorization headers arrive joined by a comma, which tokens never contain.
    if not _COMPACT_TOKEN.fullmatch(token):
        raise Unauthorized("the token is not three base64url parts")
    return token


def _claim_id(claims: dict[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not _CLAIM_ID.fullmatch(value):
        raise Unauthorized(f"claim {name} is missing or not 1 to 128 printable characters")
    return value
