"""A client's connection, which reads requests, one at a time, and sends their answers.

It keeps reading while an answer is sent, so that it notices at once when the client leaves. It
keeps, up to a bound, what a pipelining client sends meanwhile. Event loop only.
"""

import asyncio
import fcntl
import math
import os
import socket
import struct
import sys
import termios
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, cast

from common.connections.answers import answer_head
from common.connections.waiting import Wait
from proxy.audit import Outcome
from proxy.clients.crowd import Crowd
from proxy.clients.inbound import RequestBody
from proxy.clients.request_head import RequestHead, RequestPart, RequestReader
from proxy.errors import ClientStalled, Draining, Headers, Overloaded, ProxyError
from proxy.settings import Settings

MAX_PIPELINED_BYTES = 64 * 1024
# With more bytes than this waiting for a slow reader, the source of an answer is held back.
MAX_UNSENT_BYTES = 64 * 1024
LINGER_S = 2.0  # time for a client to take its last answer and close
LINGER_BYTES = 16 * 1024 * 1024  # bytes that such a client may still send
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Exchange:
    """A request on its way through the proxy, and its client."""

    def __init__(self, head: RequestHead, body: RequestBody, client: "ClientConnection") -> None:
        self.head, self.body, self.client = head, body, client
        self.abort_reason: Outcome | None = None
        # Holds back the upstream's side of an answer that is being relayed, or lets it go on.
        self.set_source_reading: Callable[[bool], object] = lambda _: None
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    def abort(self, reason: Outcome) -> None:
        """Cancels the work. Only the first reason counts."""
        if self.abort_reason is None and self._task is not None:
            self.abort_reason = reason
            # Later, because a task that is cancelled before its first step leaves no audit line.
            asyncio.get_running_loop().call_soon(self._task.cancel)

    def answer(self, status: int, headers: Headers, body: bytes, phrase: str = "") -> None:
        """Sends a whole answer. After a 400 the connection closes, because the bytes that follow a
        malformed request cannot be trusted."""
        closes = self.client.must_close(is_last=status == 400)
        head = answer_head(status, headers, closes=closes, phrase=phrase)
        self.client.write(head if self.head.method == "HEAD" else head + body)
        self.client.end_answer()

    def end(self) -> None:
        """Ends the work. Drops the task, because it and this object would keep each other alive."""
        self._task = None


class Service(Protocol):
    """Takes the requests that a connection has read."""

    @property
    def is_draining(self) -> bool: ...

    def begin(self, exchange: Exchange) -> None:
        """Starts to serve a request. At its end, `client.end_answer` or `break_off` is called."""

    def refuse(self, error: ProxyError, *, is_recorded: bool = True) -> bytes:
        """Returns the answer to bytes that are no valid request."""


class ClientConnection(asyncio.Protocol):
    """A member of the crowd, and the client of one exchange at a time."""

    def __init__(self, crowd: Crowd, service: Service, settings: Settings) -> None:
        self._crowd, self._service, self._settings = crowd, service, settings
        self._loop = asyncio.get_running_loop()
        self._reader: RequestReader | None = None
        self._exchange: Exchange | None = None
        self._pipelined = b""
        self._is_reading = True
        self._since_s = 0.0  # when the head was complete, or reading of the body was resumed
        self._num_discarded_bytes = 0
        self._num_unsent_bytes = 0
        self._will_close = False
        self.address = ""
        self.deadline_s = math.inf
        self.is_congested = False
        self.wait: Wait | None = None
        self.waits_since_s = 0.0

    # The event loop calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        if not self._crowd.enter(self, self._loop.time()):
            self._turn_away()
            return
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self._await_head(Wait.REQUEST)

    def data_received(self, data: bytes) -> None:
        if self.wait is Wait.CLOSE:
            self._discard(len(data))
        elif self._reader is None and (self._exchange or self.is_congested or self._pipelined):
            self._pipelined += data
            if len(self._pipelined) > MAX_PIPELINED_BYTES:
                self.set_reading(False)
        else:
            self._feed(data)

    def eof_received(self) -> None:
        """Treats a half-closed connection as closed: most clients that do this have left."""
        if self._exchange is not None:
            self._exchange.abort(Outcome.CLIENT_GONE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leave(self)
        self.deadline_s = math.inf
        if self._exchange is not None:
            # The kernel watches what is sent until `pause_writing` (`find_dead_peers`).
            is_stalled = isinstance(exc, TimeoutError)
            self._exchange.abort(Outcome.CLIENT_STALLED if is_stalled else Outcome.CLIENT_GONE)

    def pause_writing(self) -> None:
        self.is_congested = True
        self._watch_unsent()
        with suppress(OSError):  # not a TCP socket
            # `_expire_writing` watches it from now on: the kernel takes a small window for none.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
        if self._exchange is not None:
            self._exchange.set_source_reading(False)

    def resume_writing(self) -> None:
        self.is_congested = False
        self.deadline_s = math.inf
        if self._exchange is not None:
            self._exchange.set_source_reading(True)
        elif self.wait is Wait.CLOSE:
            self.deadline_s = self._loop.time() + LINGER_S
        elif not self._transport.is_closing():
            self._go_on()

    @property
    def _socket(self) -> socket.socket:
        return cast(socket.socket, self._transport.get_extra_info("socket"))

    # The crowd calls these.

    @property
    def is_sending(self) -> bool:
        return self._transport.get_write_buffer_size() > 0

    def expire(self) -> None:
        settings, is_lingering = self._settings, self.wait is Wait.CLOSE
        if self._transport.is_closing() or self.wait is Wait.NEXT_REQUEST:
            self._transport.abort()
        elif self.is_congested or (is_lingering and self._transport.get_write_buffer_size()):
            self._expire_writing()
        elif is_lingering:
            self._transport.abort()
        elif self._exchange is not None:
            self._exchange.body.fail(
                ClientStalled(
                    f"The request body did not come within {settings.body_timeout:g} s and one "
                    f"more for each {settings.min_body_rate} bytes; send it faster."
                )
            )
        elif self._reader is not None and self._reader.has_begun:
            self._refuse(
                ClientStalled(f"The request head did not come within {settings.head_timeout:g} s.")
            )
        else:
            self._transport.abort()

    def evict(self) -> None:
        if self.wait is Wait.REQUEST:
            self._turn_away()
        else:
            self._transport.abort()

    # The request body calls these.

    def set_reading(self, is_reading: bool) -> None:
        if self._transport.is_closing():
            return
        self._is_reading = is_reading
        if is_reading:
            self._transport.resume_reading()
            self._since_s = self._loop.time()
            self._pace_body()
        else:
            self._transport.pause_reading()
            self._wait_for_ever()

    def invite_body(self) -> None:
        self._transport.write(CONTINUE)

    # The exchange calls these.

    def must_close(self, *, is_last: bool = False) -> bool:
        """Returns whether the connection closes after the answer that is about to begin."""
        exchange, reader = self._exchange, self._reader
        assert exchange is not None
        self._will_close = (
            is_last
            or not exchange.head.keeps_alive
            or self._service.is_draining
            or not exchange.body.is_ended
            or self._will_close
            or (reader is not None and reader.has_overrun)
        )
        return self._will_close

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def end_answer(self) -> None:
        exchange, self._exchange = self._exchange, None
        if self._transport.is_closing():
            return
        self._wait_for_ever()
        if self._will_close or exchange is None or not exchange.body.is_ended:
            self._linger()
        elif self.is_congested:
            self.set_reading(False)  # until the client has taken this answer
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Continues with the next request, which may have been received already."""
        if not self._is_reading and len(self._pipelined) <= MAX_PIPELINED_BYTES:
            self.set_reading(True)
        self._await_head(Wait.REQUEST if self._pipelined else Wait.NEXT_REQUEST)
        if self._pipelined:
            # Called later, so that a thousand pipelined requests are no deep recursion. Until then
            # the bytes stay in `_pipelined`, so that bytes which come sooner are put behind them.
            self._loop.call_soon(self._feed_pipelined)

    def break_off(self) -> None:
        """Ends an answer that stays incomplete, in a way that the client notices."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None and exchange.head.is_http_1_0 and not self._transport.is_closing():
            self._reset()
        elif self.is_congested or not self._is_reading:
            self._transport.abort()
        else:
            self._transport.close()

    def _feed_pipelined(self) -> None:
        pipelined, self._pipelined = self._pipelined, b""
        if pipelined and not self._transport.is_closing() and self.wait is not Wait.CLOSE:
            if not self._is_reading:
                self.set_reading(True)
            self.data_received(pipelined)
            if len(self._pipelined) > MAX_PIPELINED_BYTES:
                self.set_reading(False)

    def _feed(self, data: bytes) -> None:
        is_begun = self._reader is not None
        reader = self._reader = self._reader or RequestReader(self._on_head, self._on_body)
        try:
            rest = reader.feed(data)
        except ProxyError as error:
            self._will_close = True
            if self._exchange is None:
                self._refuse(error)
            else:
                self._exchange.body.fail(error)
            return
        if self._exchange is None:
            if not is_begun:
                self._await_head(Wait.REQUEST)
            return
        if reader.part is RequestPart.NONE:
            self._will_close = self._will_close or reader.has_overrun
            self._reader = None
            self._pipelined = rest
            self._wait_for_ever()
            self._exchange.body.end()
        elif not self._exchange.body.is_held_back:
            self._pace_body()

    def _on_head(self, head: RequestHead) -> None:
        head.peer = self.address
        head.scheme = "https" if self._is_tls else "http"
        self._crowd.serve(self)
        self.deadline_s = math.inf
        self._since_s = self._loop.time()
        self._exchange = Exchange(head, RequestBody(head, self), self)
        self._service.begin(self._exchange)

    def _on_body(self, piece: bytes) -> None:
        assert self._exchange is not None
        self._exchange.body.feed(piece)

    def _await_head(self, wait: Wait) -> None:
        settings, is_kept = self._settings, wait is Wait.NEXT_REQUEST
        now_s = self._loop.time()
        self.deadline_s = now_s + (settings.keepalive_timeout if is_kept else settings.head_timeout)
        if self.wait is not wait:
            self._crowd.wait(self, wait, now_s)

    def _pace_body(self) -> None:
        """Sets the body's deadline as Apache's mod_reqtimeout does: bytes received earn time."""
        if self.is_congested or self._exchange is None:
            return
        if not self._exchange.body.is_ended:
            earned_s = self._exchange.body.num_read_bytes / self._settings.min_body_rate
            self.deadline_s = self._since_s + self._settings.body_timeout + earned_s

    def _wait_for_ever(self) -> None:
        """Removes the deadline, unless the client has stopped reading."""
        if not self.is_congested:
            self.deadline_s = math.inf

    def _watch_unsent(self) -> None:
        self._num_unsent_bytes = self._count_unsent()
        self.deadline_s = self._loop.time() + self._settings.client_timeout

    def _count_unsent(self) -> int:
        """Returns the bytes that are not sent. Those in the kernel count, too, because it takes
        more from here in steps of up to megabytes."""
        in_kernel = fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4))
        return self._transport.get_write_buffer_size() + int.from_bytes(in_kernel, sys.byteorder)

    def _expire_writing(self) -> None:
        """Cuts off a client that has taken nothing since the last check; spares a slow one."""
        if self._count_unsent() < self._num_unsent_bytes:
            self._watch_unsent()
            return
        if self._exchange is not None:
            self._exchange.abort(Outcome.CLIENT_STALLED)
        self._transport.abort()

    def _refuse(self, error: ProxyError) -> None:
        self._transport.write(self._service.refuse(error))
        self._linger()

    def _turn_away(self) -> None:
        """Refuses the client. Records a request only if some of its bytes have come."""
        is_recorded = self._reader is not None and self._reader.has_begun
        error = Draining() if self._service.is_draining else Overloaded("too many connections")
        self._transport.write(self._service.refuse(error, is_recorded=is_recorded))
        self._transport.close()

    def _linger(self) -> None:
        """Closes our side and waits for the client's, so that it loses none of the answer."""
        self._reader = None
        if self._is_tls:
            self._transport.close()
            return
        self._crowd.wait(self, Wait.CLOSE, self._loop.time())
        if not self.is_congested:
            self._num_unsent_bytes = sys.maxsize  # so that the first check cuts nobody off
            self.deadline_s = self._loop.time() + LINGER_S
        self._transport.resume_reading()
        self._transport.write_eof()

    def _discard(self, num_bytes: int) -> None:
        self._num_discarded_bytes += num_bytes
        if self._num_discarded_bytes > LINGER_BYTES:
            self._transport.abort()

    def _reset(self) -> None:
        """Closes with a TCP reset: after an orderly end, a body without framing looks complete."""
        with socket.socket(fileno=os.dup(self._socket.fileno())) as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
