"""Asks another server over HTTP, within bounds on bytes and time, whatever it answers."""

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
from urllib.parse import SplitResult

import certifi

from common.addresses import http_parts

MAX_REASON = 300  # characters
OK = 200


class FetchFailed(OSError):
    """There was no complete answer with status 200 within the bounds."""


class FetchLate(FetchFailed):
    """There was no answer in time."""


@dataclass(frozen=True, slots=True)
class FetchBounds:
    """Bounds. `read_s` covers everything after connecting, including TLS and the head."""

    connect_s: float
    read_s: float
    max_bytes: int


PROBE = FetchBounds(connect_s=5.0, read_s=10.0, max_bytes=2**20)


@dataclass(frozen=True, slots=True)
class Fetched:
    status: int
    content: bytes
    location: str = ""
    """The target of a redirect, which is not followed."""

    @property
    def text(self) -> str:
        """The beginning of the body, for a message."""
        return self.content[:MAX_REASON].decode(errors="replace")

    def json(self) -> Any:
        """Returns the body's JSON value. Raises ValueError and RecursionError."""
        return json.loads(self.content)


def fetch(url: str, bounds: FetchBounds, headers: Mapping[str, str] | None = None) -> bytes:
    """Returns the body. Raises FetchFailed, also for a status other than 200; see `ask`."""
    answer = ask(url, bounds, headers=headers)
    if answer.status != OK:
        raise FetchFailed(f"{url}: answers {answer.status}")
    return answer.content


def answers_ok(url: str, bounds: FetchBounds = PROBE) -> bool:
    """Returns whether the server gives a complete answer with status 200."""
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
    """Returns the answer, whatever its status. `body` is sent as JSON. Follows no redirect and uses
    no proxy, whatever the environment says. Raises FetchFailed."""
    try:
        parts = http_parts(url)
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        sent, all_headers = None, dict(headers or {})
        if body is not None:
            sent = json.dumps(body, allow_nan=False).encode()
            all_headers["Content-Type"] = "application/json"
        with connected(parts, bounds) as connection:
            connection.request(verb, path, sent, all_headers)
            with connection.getresponse() as response:
                body = body_of(response, bounds.max_bytes)
                return Fetched(response.status, body, response.getheader("Location", ""))
    except (HTTPException, OSError, ValueError) as error:
        kind = FetchLate if isinstance(error, TimeoutError) else FetchFailed
        raise kind(f"{url}: {error or type(error).__name__}"[:MAX_REASON]) from error


@contextmanager
def connected(
    parts: SplitResult, bounds: FetchBounds, tls: ssl.SSLContext | None = None
) -> Iterator[HTTPConnection]:
    """Opens a connection that ends in time: another thread shuts it down, because a socket's own
    timeout begins anew with each byte. `tls` is for servers of an authority of their own. Raises
    OSError, of which TimeoutError is one."""
    host = parts.hostname or ""
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    connection = HTTPConnection(host, port)
    with (
        socket.create_connection((host, port), bounds.connect_s) as plain,
        plain.dup() as watched,  # because TLS takes over the other one
    ):
        plain.settimeout(bounds.read_s)
        until_s = time.monotonic() + bounds.read_s
        watchdog = Timer(bounds.read_s, _end, (watched,))
        watchdog.daemon = True
        watchdog.start()
        try:
            connection.sock = plain
            if is_tls:
                tls = tls or _public_tls()
                plain.getpeername()  # raises if the peer is gone, where TLS would leak the socket
                connection.sock = tls.wrap_socket(plain, server_hostname=host)
            yield connection
        finally:
            watchdog.cancel()
            watchdog.join()
            connection.close()
            if time.monotonic() >= until_s:
                raise TimeoutError(f"took more than {bounds.read_s:g} s")


def _public_tls() -> ssl.SSLContext:
    tls = ssl.create_default_context()  # the system's certificates, or SSL_CERT_FILE's
    tls.load_verify_locations(certifi.where())
    return tls


def _end(watched: socket.socket) -> None:
    with suppress(OSError):  # already closed
        watched.shutdown(socket.SHUT_RDWR)


def body_of(response: HTTPResponse, max_bytes: int) -> bytes:
    """Returns a whole body. Raises ValueError if it is longer or cut short."""
    content = response.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"has more than {max_bytes} bytes")
    if response.length:
        raise ValueError(f"{response.length} bytes are missing at the end")
    return content
