"""Keys of tokens' signatures: shared secrets, or public keys from a JWKS.

Given a token's algorithm and key id, a key source returns keys whose type fits the algorithm, so a
public key is never tried as an HMAC secret.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jwt import PyJWK
from jwt.exceptions import PyJWTError

from common.fetch import FetchBounds, fetch
from proxy.settings import ASYMMETRIC_ALGORITHMS, SYMMETRIC_ALGORITHMS

log = logging.getLogger(__name__)

BOUNDS = FetchBounds(connect_s=5.0, read_s=5.0, max_bytes=1024 * 1024)
MAX_AGE_S = 900.0
# An unknown key id causes at most one refetch in this time, and only a few key ids cause one.
REFETCH_WINDOW_S = 30.0
MAX_REFETCHES = 5
# A token without a key id may fit any key, and each try takes time.
MAX_CANDIDATES = 16

RSA_ALGORITHMS = sorted(name for name in ASYMMETRIC_ALGORITHMS if name.startswith(("RS", "PS")))

Key = str | PyJWK
KeySource = Callable[[str, str | None], Sequence[Key]]
"""Returns the keys to try for an algorithm and a key id, best first. Any thread; never raises."""


def shared_secrets(secrets: Sequence[str]) -> KeySource:
    """The source of the current secret, and the previous one during a rotation."""
    return lambda algorithm, _key_id: secrets if algorithm in SYMMETRIC_ALGORITHMS else ()


def fetch_jwks(url: str) -> str:
    """Fetches a URL without redirects. Raises FetchFailed, which is an OSError, and ValueError."""
    return str(fetch(url, BOUNDS), "utf-8")


@dataclass(slots=True, eq=False)
class JwksUrl:
    """Public keys from an identity provider, kept MAX_AGE_S and refetched on an unknown key id.

    There are at most MAX_REFETCHES per REFETCH_WINDOW_S, successful or not, so that tokens with
    made-up key ids cannot overload the provider; and only one for the same key id, so that tokens
    of a removed key cannot delay a new key. After a failed fetch the last good set stays. Any
    thread; during a fetch the lock is free, and other threads use the old set.
    """

    url: str
    fetch: Callable[[str], str] = fetch_jwks
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _keys: tuple[PyJWK, ...] = ()
    _fetched_at: float | None = None  # when the last good set was fetched
    _refetches: deque[tuple[float, object]] = field(  # time, reason
        default_factory=lambda: deque(maxlen=MAX_REFETCHES)
    )

    def candidates(self, algorithm: str, key_id: str | None) -> Sequence[Key]:
        fetched_at = self._fetched_at
        is_old = fetched_at is None or self.clock() - fetched_at >= MAX_AGE_S
        if is_old:
            self._refetch("age")
        found = select_keys(self._keys, algorithm, key_id)
        if not found and not is_old and algorithm in ASYMMETRIC_ALGORITHMS:
            self._refetch((algorithm, key_id))
            found = select_keys(self._keys, algorithm, key_id)
        return found

    def _refetch(self, reason: object) -> None:
        with self._lock:
            now = self.clock()
            recent = [why for at, why in self._refetches if now - at < REFETCH_WINDOW_S]
            if reason in recent or len(recent) == MAX_REFETCHES:
                return
            self._refetches.append((now, reason))
        try:
            keys = parse_jwks(self.fetch(self.url))
        except (OSError, ValueError, RecursionError) as error:
            log.warning("JWKS fetch failed, the last good set stays: %s", error)
            return
        with self._lock:
            self._keys, self._fetched_at = keys, self.clock()
        log.info("JWKS fetched: %d keys", len(keys))


def parse_jwks(text: str) -> tuple[PyJWK, ...]:
    """Returns the usable public signing keys of a JWKS document. Raises ValueError if there is
    none.

    An RSA key without an algorithm may be used with all RSA algorithms (RFC 7517, section 4.4).
    Keys of unknown types are skipped (RFC 7517, section 5). So are symmetric keys ("oct"), which in
    a published set would be leaked secrets.
    """
    document = json.loads(text)
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("not a JWKS: no list under 'keys'")
    keys = []
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
            continue
        is_any_rsa = entry.get("kty") == "RSA" and not entry.get("alg")
        for algorithm in RSA_ALGORITHMS if is_any_rsa else (None,):
            try:
                key = PyJWK.from_dict(entry, algorithm)
            except (PyJWTError, KeyError, ValueError, TypeError):
                break  # the last three are the library's errors for missing or odd members
            if key.algorithm_name in ASYMMETRIC_ALGORITHMS:
                keys.append(key)
    if not keys:
        raise ValueError("the JWKS holds no usable public signing key")
    return tuple(keys)


def select_keys(keys: Sequence[PyJWK], algorithm: str, key_id: str | None) -> tuple[PyJWK, ...]:
    """Returns the keys for `algorithm`; with a key id, those with that id, or else with none."""
    fitting = [key for key in keys if key.algorithm_name == algorithm]
    if key_id is not None:
        named = [key for key in fitting if key.key_id == key_id]
        fitting = named or [key for key in fitting if key.key_id is None]
    return tuple(fitting[:MAX_CANDIDATES])
