"""What another server answers over HTTP, bounded in bytes and time: whatever listens there."""

import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from threading import Timer
from typing import Any
from urllib.parse import SplitResult, urlsplit

import certifi

MAX_REASON = 300  # characters
OK = 200


class FetchFailed(OSError):
    """Nobody answered, or not with a whole page of status 200 within the bounds."""


class FetchLate(FetchFailed):
    """Nobody answered in time."""


@dataclass(frozen=True, slots=True)
class FetchBounds:
    """`read_s` is for all that follows once it is connected, TLS and the head included."""

    connect_s: float
    read_s: float
    max_bytes: int


PROBE = FetchBounds(connect_s=5.0, read_s=10.0, max_bytes=2**20)


@dataclass(frozen=True, slots=True)
class Fetched:
    status: int
    content: bytes

    @property
    def text(self) -> str:
        """Its beginning, for a message."""
        return self.content[:MAX_REASON].decode(errors="replace")

    def json(self) -> Any:
        """Raises ValueError and RecursionError."""
        return json.loads(self.content)


def fetch(url: str, bounds: FetchBounds, headers: Mapping[str, str] | None = None) -> bytes:
    """Returns the body. Raises FetchFailed, also for any other status than 200; see `ask`."""
    answer = ask(url, bounds, headers=headers)
    if answer.status != OK:
        raise FetchFailed(f"{url}: answers {answer.status}")
    return answer.content


def answers_ok(url: str, bounds: FetchBounds = PROBE) -> bool:
    """Whether it answers 200, as a whole."""
    try:
        return ask(url, bounds).status == OK
    except FetchFailed:
        return False


def ask(
    url: str,
    bounds: FetchBounds,
    verb: str = "GET",
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> Fetched:
    """Returns what is answered, whatever its status. `body` is sent as JSON.

    Follows no redirect and uses no proxy, whatever the environment says. Raises FetchFailed.
    """
    try:
        parts = urlsplit(url)
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        sent, all_headers = None, dict(headers or {})
        if body is not None:
            sent = json.dumps(body, allow_nan=False).encode()
            all_headers["Content-Type"] = "application/json"
        with _connected(parts, bounds) as connection:
            connection.request(verb, path, sent, all_headers)
            with connection.getresponse() as response:
                return Fetched(response.status, _body_of(response, bounds.max_bytes))
    except (HTTPException, OSError, ValueError) as error:
        kind = FetchLate if isinstance(error, TimeoutError) else FetchFailed
        raise kind(f"{url}: {error or type(error).__name__}"[:MAX_REASON]) from error


@contextmanager
def _connected(parts: SplitResult, bounds: FetchBounds) -> Iterator[HTTPConnection]:
    """A connection that ends in time. A socket's own timeout is for each of its reads, and starts
    anew with each byte of a server that drips: so somebody else ends it. Raises TimeoutError."""
    host = parts.hostname or ""
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    connection = HTTPConnection(host, port)
    with (
        socket.create_connection((host, port), bounds.connect_s) as plain,
        plain.dup() as watched,  # TLS takes the other
    ):
        plain.settimeout(bounds.read_s)
        until_s = time.monotonic() + bounds.read_s
        watchdog = Timer(bounds.read_s, _end, (watched,))
        watchdog.daemon = True
        watchdog.start()
        try:
            connection.sock = _secured(plain, host) if is_tls else plain
            yield connection
        finally:
            watchdog.cancel()
            watchdog.join()
            connection.close()
            if time.monotonic() >= until_s:
                raise TimeoutError(f"took more than {bounds.read_s:g} s")


def _secured(plain: socket.socket, host: str) -> ssl.SSLSocket:
    context = ssl.create_default_context()  # the system's authorities, or SSL_CERT_FILE's
    context.load_verify_locations(certifi.where())
    plain.getpeername()  # raises where the peer is gone: `wrap_socket` would leave its socket open
    return context.wrap_socket(plain, server_hostname=host)


def _end(watched: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        watched.shutdown(socket.SHUT_RDWR)


def _body_of(response: HTTPResponse, max_bytes: int) -> bytes:
    content = response.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"has more than {max_bytes} bytes")
    if response.length:
        raise ValueError(f"{response.length} bytes are missing at the end")
    return content
