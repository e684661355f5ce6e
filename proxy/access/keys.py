"""Keys that tokens may be signed with: shared secrets, or public keys from a JWKS.

A key source is asked with the token's algorithm and key id and answers with candidates whose
type fits that algorithm. So a public key is never tried as an HMAC secret, whatever a token says.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from jwt import PyJWK
from jwt.exceptions import PyJWTError

from proxy.files import WatchedFile
from proxy.settings import ASYMMETRIC_ALGORITHMS, SYMMETRIC_ALGORITHMS

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S = 5.0
MAX_AGE_S = 900.0
MIN_REFETCH_S = 30.0
MAX_JWKS_BYTES = 1024 * 1024

Key = str | PyJWK


class KeySource(Protocol):
    """Any thread may call it. `may_block`: it asks another machine for its keys at times."""

    @property
    def may_block(self) -> bool: ...

    def candidates(self, algorithm: str, key_id: str | None) -> Sequence[Key]:
        """The keys worth trying, best first; empty when none fits. Never raises."""
        ...


class SharedSecrets:
    """The current secret, and the previous one while clients change over. Immutable."""

    may_block = False

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = tuple(secrets)

    def candidates(self, algorithm: str, key_id: str | None) -> Sequence[Key]:
        return self._secrets if algorithm in SYMMETRIC_ALGORITHMS else ()


class JwksFile:
    """Public keys from a file that is read again when it changes. Any thread."""

    may_block = False

    def __init__(self, file: WatchedFile[tuple[PyJWK, ...]]) -> None:
        self._file = file

    def candidates(self, algorithm: str, key_id: str | None) -> Sequence[Key]:
        return select_keys(self._file.value, algorithm, key_id)


class JwksUrl:
    """Public keys from an identity provider, kept MAX_AGE_S and refetched on an unknown key id.

    At most one fetch per MIN_REFETCH_S, successful or not, so that tokens with made-up key ids
    cannot make us hammer the provider. A failed fetch keeps the last good set. Any thread; the
    lock is never held during a fetch, and other threads use the old set meanwhile.
    """

    may_block = True

    def __init__(
        self,
        url: str,
        fetch: Callable[[str], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._fetch = fetch or fetch_jwks
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: tuple[PyJWK, ...] = ()
        self._fetched_at: float | None = None  # of the last good set
        self._tried_at: float | None = None

    def candidates(self, algorithm: str, key_id: str | None) -> Sequence[Key]:
        if self._is_older_than(MAX_AGE_S):
            self._refetch()
        found = select_keys(self._keys, algorithm, key_id)
        if not found and algorithm in ASYMMETRIC_ALGORITHMS:
            self._refetch()
            found = select_keys(self._keys, algorithm, key_id)
        return found

    def _is_older_than(self, age_s: float) -> bool:
        return self._fetched_at is None or self._clock() - self._fetched_at >= age_s

    def _refetch(self) -> None:
        with self._lock:
            now = self._clock()
            if self._tried_at is not None and now - self._tried_at < MIN_REFETCH_S:
                return
            self._tried_at = now
        try:
            keys = parse_jwks(self._fetch(self._url))
        except (OSError, ValueError) as error:
            log.warning("JWKS fetch failed, the last good set stays: %s", error)
            return
        with self._lock:
            self._keys, self._fetched_at = keys, self._clock()
        log.info("JWKS fetched: %d keys", len(keys))


def fetch_jwks(url: str) -> str:
    """One GET, without redirects (they could lead to a place nobody configured). Raises
    OSError and ValueError."""
    import requests  # takes long, and most proxies have no JWKS_URL

    response = requests.get(url, timeout=FETCH_TIMEOUT_S, allow_redirects=False, stream=True)
    with response:
        response.raise_for_status()
        if response.status_code != 200:
            raise ValueError(f"status {response.status_code}, expected 200")
        body = response.raw.read(MAX_JWKS_BYTES + 1, decode_content=True)
    if len(body) > MAX_JWKS_BYTES:
        raise ValueError(f"JWKS over {MAX_JWKS_BYTES} bytes")
    return str(body, "utf-8")


def parse_jwks(text: str) -> tuple[PyJWK, ...]:
    """The usable public signing keys of a JWKS document; ValueError when there is none.

    Keys of kinds we do not know are skipped, as RFC 7517, section 5, asks. A symmetric key
    ("oct") in a published set would be a leaked secret: skipped as well.
    """
    document = json.loads(text)
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("not a JWKS: no list under 'keys'")
    keys = []
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
            continue
        try:
            key = PyJWK.from_dict(entry)
        except (PyJWTError, KeyError, ValueError, TypeError):
            continue  # the last three: the library's own, for parts that are missing or odd
        if key.algorithm_name in ASYMMETRIC_ALGORITHMS:
            keys.append(key)
    if not keys:
        raise ValueError("the JWKS holds no usable public signing key")
    return tuple(keys)


def select_keys(keys: Sequence[PyJWK], algorithm: str, key_id: str | None) -> tuple[PyJWK, ...]:
    """The keys bound to `algorithm`; with a key id, only those that carry that id."""
    return tuple(
        key
        for key in keys
        if key.algorithm_name == algorithm and (key_id is None or key.key_id == key_id)
    )
