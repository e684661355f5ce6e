"""Sends one HTTP request on its own connection, and records when each part of the answer comes.

It is an asyncio protocol over llhttp, because the client must cost next to nothing compared to the
server. It takes the time of a read before it parses the data. Event loop of the load process only.
"""

import asyncio
import math
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import cast

import httptools

from benchmarking.load.answers import AnswerFault, StreamReader, error_text
from benchmarking.records import INTERRUPTED, RequestError
from common.connections.sockets import host_and_port

CONNECT_TIMEOUT_S = 10.0
MAX_ERROR_BYTES = 4096
MAX_HEAD_BYTES = 2**20
MAX_ANSWER_BYTES = 256 * 2**20
FRAMING_HEADERS = ("content-length", "transfer-encoding")

CUT_OFF = RequestError(INTERRUPTED, "stopped before its end")

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port to connect to. A certificate must be for `host`."""

    host: str
    port: int
    is_tls: bool = False

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a request: its time, its HTTP status (None without an answer), and its error.
    `retry_after_s` is how long to wait before sending it again, if the server says so."""

    end_s: float
    status: int | None
    error: RequestError | None
    retry_after_s: float | None = None


class StreamClient(asyncio.Protocol):
    """Sends `request` and feeds `answer` with the response. Sets `ended` when either side ends."""

    def __init__(self, request: bytes, answer: StreamReader, clock: Clock) -> None:
        self.status: int | None = None
        self.error: RequestError | None = None
        self.headers: dict[str, str] = {}
        self.ended = asyncio.get_running_loop().create_future()
        self._request = request
        self._answer = answer
        self._clock = clock
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._num_bytes = 0
        self._error_body = b""
        self._now_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._now_s = self._clock()
        if self.ended.done():
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(RequestError("protocol", f"not an HTTP answer: {error}"))
        self._num_bytes += len(data)
        bound = MAX_HEAD_BYTES if self.status is None else MAX_ANSWER_BYTES
        if self._num_bytes > bound:
            self._end(RequestError("protocol", f"more than {bound} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        is_framed = any(name in self.headers for name in FRAMING_HEADERS)
        if self.status is not None and not is_framed and exc is None:
            self.on_message_complete()  # a body without framing ends with its connection
        when = "before an answer" if self.status is None else "in the middle of the answer"
        reason = f": {exc}" if exc else ""
        self._end(RequestError("connection", f"the server closed the connection {when}{reason}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower().decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        coding = self.headers.get("content-encoding", "").lower()
        if self.status == 200 and coding not in ("", "identity"):
            self._end(RequestError("protocol", f"encoded as {coding}, which nobody asked for"))
        if "image" in self.headers.get("x-hearth-ignored", ""):
            self._end(RequestError("ignored", "it leaves images aside"))

    def on_body(self, body: bytes) -> None:
        if self.ended.done():
            return
        if self.status != 200:
            self._error_body = (self._error_body + body)[:MAX_ERROR_BYTES]
            return
        try:
            self._answer.feed(body, self._now_s)
        except AnswerFault as fault:
            self._end(RequestError(fault.code, str(fault)))

    def on_message_complete(self) -> None:
        if self.status is not None and self.status < 200:
            self.status = None  # an interim response; the answer itself is still to come
            return
        if self.status != 200:
            message = error_text(self._error_body, self.headers.get("location", ""))
            self._end(RequestError(str(self.status), message))
            return
        try:
            self._answer.finish()
        except AnswerFault as fault:
            self._end(RequestError(fault.code, str(fault)))
        self._end(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: RequestError | None) -> None:
        """End the request, unless it has ended already."""
        if not self.ended.done():
            self.error = error
            self.ended.set_result(self._clock())


class Peer:
    """A server's address, resolved once, so that no request pays for it."""

    def __init__(self, address: Address, clock: Clock, timeout_s: float) -> None:
        self._address = address
        self._clock = clock
        self._timeout_s = timeout_s
        self._host = _reachable_host(address)
        self._tls = ssl.create_default_context() if address.is_tls else None

    async def send(self, request: bytes, answer: StreamReader) -> Outcome:
        """Sends a request. Never raises: errors and cancellation are part of the outcome."""
        client = StreamClient(request, answer, self._clock)
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: client,
                    self._host,
                    self._address.port,
                    ssl=self._tls,
                    server_hostname=self._address.host if self._tls else None,
                )
                end_s = await client.ended
                wait_s = retry_after_s(client.headers.get("retry-after", ""), time.time())
                return Outcome(end_s, client.status, client.error, wait_s)
        except TimeoutError:
            error = RequestError("timeout", f"no end after {self._timeout_s:g} s")
        except OSError as fault:
            error = RequestError("connection", f"{self._address}: {fault}")
        except asyncio.CancelledError:
            error = CUT_OFF
        finally:
            client.close()
        return Outcome(self._clock(), client.status, error)


def retry_after_s(header: str, now_s: float) -> float | None:
    """Returns the seconds of a `Retry-After`, which is a number or a date; None if it is neither.
    `now_s` is in seconds since 1970."""
    try:
        wait_s = float(header)
    except ValueError:
        try:
            wait_s = parsedate_to_datetime(header).timestamp() - now_s
        except (ValueError, OverflowError):
            return None
    return max(wait_s, 0.0) if math.isfinite(wait_s) else None


def _reachable_host(address: Address) -> str:
    """Returns the host's first address that accepts a connection; the host if none does."""
    try:
        with socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S) as probe:
            return str(probe.getpeername()[0])
    except OSError:
        return address.host
