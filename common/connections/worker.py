"""gunicorn's threaded worker, in which no thread waits for a client to send.

The polling thread collects requests, closes connections that are too slow or too many, and gives
clients time to close; request threads get complete requests. The rest is gunicorn's. The methods
overridden here, and `inbound.Inbound`, are all that we assume about its internals;
`tests/e2e/test_slow_clients.py` fails if an upgrade changes them.
"""

import errno
import json
import logging
import resource
import select
import selectors
import socket
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from gunicorn.http.errors import ParseException
from gunicorn.workers.gthread import ThreadWorker

from common.connections.answers import answer_head, content_headers
from common.connections.errors import InvalidHead, RequestTimeout, TooManyConnections
from common.connections.inbound import MAX_HEAD_BYTES
from common.connections.sockets import polling
from common.connections.waiting import PolledConnection, Wait, WaitingConnections
from common.errors import WireError

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 64 * 1024
MAX_ACCEPTED = 32  # connections accepted per poll, so that other work is not delayed
LINGER_S = 2.0  # time for a client to close an answered connection
LINGER_BYTES = 16 * 1024 * 1024  # bytes that it may still send meanwhile
SWEEP_S = 0.5  # interval of the search for late connections
PROBE_PATHS = frozenset({"/health", "/ready"})
PROBE_THREADS = 2
SPARE_DESCRIPTORS = 256  # for files and sockets other than clients'
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
NO_CONNECTION = (errno.EAGAIN, errno.EWOULDBLOCK, errno.ECONNABORTED)


def allowed_connections(wanted: int) -> int:
    """Increases the limit of descriptors. Returns how many connections this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_DESCRIPTORS
    limit = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return min(wanted, max(limit, soft) - SPARE_DESCRIPTORS)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits for clients whose requests are incomplete."""

    max_body_bytes: int
    head_timeout_s: float = 5.0
    body_timeout_s: float = 10.0
    min_body_bytes_per_s: int = 16 * 1024  # bytes that earn one more second
    max_waiting_per_address: int = 256
    # A younger connection does not count against its address: clients connect before they send.
    grace_s: float = 1.0
    max_held_requests: int = 64  # requests of full size, coming in or being answered


class PollingWorker(ThreadWorker):
    """The worker; see `polling_worker`. Everything except `handle` runs on the polling thread."""

    limits: ClassVar[ConnectionLimits]
    _waiting: WaitingConnections
    _probe_pool: ThreadPoolExecutor
    _crowded: set[str]  # addresses with too many connections that may wait
    _swept_at_s = 0.0
    _num_let_go = 0  # connections closed to make room since the last sweep

    @classmethod
    def check_config(cls, cfg: Any, log: Any) -> None:
        if cfg.is_ssl or cfg.proxy_protocol != "off":
            sys.exit("Sockets here are plain: unset certfile, keyfile and proxy_protocol, "
                     "and end TLS before it.")  # fmt: skip

    def run(self) -> None:
        self._waiting = WaitingConnections()
        self._crowded = set()
        self._probe_pool = ThreadPoolExecutor(PROBE_THREADS, "probe")
        super().run()
        self._probe_pool.shutdown(wait=False)

    def accept(self, listener: socket.socket) -> None:
        server, max_body_bytes = listener.getsockname(), self.limits.max_body_bytes
        for _ in range(MAX_ACCEPTED):
            try:
                sock, client = listener.accept()
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    self._make_room()
                elif error.errno not in NO_CONNECTION:
                    raise
                return
            connection = PolledConnection(self.cfg, sock, client, server, max_body_bytes)
            connection.since_s = time.monotonic()
            self.nr_conns += 1
            self._receive(connection)  # the request often comes with the connection
            if self.nr_conns >= self.worker_connections:
                self._make_room(besides=connection)

    def enqueue_req(self, conn: PolledConnection) -> None:  # type: ignore[override]
        """Submit a request. Probes have threads that no other request can take."""
        self._waiting.remove(conn)
        self._set_polled(conn, False)
        request = conn.parser.request
        is_probe = request is not None and request.path in PROBE_PATHS
        is_quick = is_probe and polling(conn.sock, select.POLLOUT).poll(0)
        pool = self._probe_pool if is_quick else self.tpool
        future = pool.submit(self.handle, conn)
        future.add_done_callback(
            lambda done: self.method_queue.defer(self.finish_request, conn, done)
        )

    def finish_request(self, conn: PolledConnection, fs: Future[bool]) -> None:  # type: ignore[override]
        self._waiting.hold(conn, 0)
        if conn.sock.fileno() < 0:  # the request failed midway
            self._close(conn)
        elif fs.cancelled() or fs.exception() is not None or not fs.result():
            self._linger(conn)
        else:
            conn.sock.setblocking(False)
            conn.since_s = time.monotonic()
            self._take(conn, conn.parser.unreader.take_buffered(), Wait.NEXT_REQUEST)

    def murder_keepalived(self, force: bool = False) -> None:
        """Called after each poll: close connections whose time is over, or all."""
        now_s = time.monotonic()
        if force:
            for conn in self._waiting.all():
                self._close(conn)
            return
        self._thin_out()
        if self.nr_conns >= self.worker_connections:
            # Otherwise no connection would be accepted until a client closes one.
            self._make_room(besides=self._waiting.newest())
        if now_s >= self._swept_at_s + SWEEP_S:
            for conn in self._waiting.all():
                if conn.deadline_s <= now_s:
                    self._time_out(conn)
            if self._num_let_go:
                logger.warning("closed %d connections to make room for others", self._num_let_go)
            self._swept_at_s, self._num_let_go = now_s, 0

    def _cap_keepalive(self, deadline: float) -> None:
        """Called when the worker stops."""
        for conn in self._waiting.all():
            conn.deadline_s = min(conn.deadline_s, deadline)

    def _on_readable(self, conn: PolledConnection, sock: socket.socket) -> None:
        if conn.is_polled:  # it was not closed since the poll to make room for another
            self._receive(conn)

    def _receive(self, conn: PolledConnection) -> None:
        try:
            data = conn.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            if conn.wait is None:  # the connection is new
                self._await(conn, Wait.REQUEST)
            return
        except OSError:
            data = b""
        if not data:  # the client has left
            self._close(conn)
        elif conn.wait is Wait.CLOSE:
            self._discard(conn, len(data))
        else:
            if conn.wait is Wait.NEXT_REQUEST:
                conn.since_s = time.monotonic()
            self._take(conn, data, Wait.REQUEST)

    def _take(self, conn: PolledConnection, data: bytes, wait: Wait) -> None:
        """Receive bytes of a client. `wait` is what to wait for if no request has begun."""
        had_head = conn.parser.request is not None
        try:
            is_due = conn.parser.feed(data)
        except ParseException as error:
            self._refuse(conn, InvalidHead(error))
            return
        except Exception as error:  # gunicorn itself would catch everything here
            self.handle_error(None, conn.sock, conn.client, error)
            self._linger(conn)
            return
        self._waiting.hold(conn, conn.num_held_bytes + len(data))
        if not self._has_room_for_bytes_of(conn):
            return
        if is_due:
            self.enqueue_req(conn)
            return
        if not had_head and conn.parser.request is not None:
            conn.since_s = time.monotonic()
        if conn.parser.take_expectation():
            _send(conn.sock, b"HTTP/1.1 100 Continue\r\n\r\n")
        self._await(conn, Wait.REQUEST if conn.parser.has_begun else wait)

    def _await(self, conn: PolledConnection, wait: Wait) -> None:
        conn.deadline_s = conn.since_s + self._patience_s(conn, wait)
        if not self.alive:
            conn.deadline_s = min(conn.deadline_s, time.monotonic() + LINGER_S)
        self._set_polled(conn, True)
        if conn.wait is not wait:
            self._waiting.add(conn, wait)
        if self._has_too_many(conn.address):
            self._crowded.add(conn.address)

    def _has_too_many(self, address: str) -> bool:
        waiting = self._waiting.by_address.get(address, ())
        return len(waiting) > self.limits.max_waiting_per_address

    def _thin_out(self) -> None:
        """Close the connections that have waited longest, for each address with too many."""
        crowded, self._crowded = self._crowded, set()
        latest_s = time.monotonic() - self.limits.grace_s
        for address in crowded:
            while self._has_too_many(address):
                conn = self._waiting.oldest_of(address)
                if conn.since_s > latest_s:
                    self._crowded.add(address)
                    break
                if self._still_waits(conn):
                    self._turn_away(conn)

    def _make_room(self, besides: PolledConnection | None = None) -> None:
        """Close a connection to make room for another, if one can be spared."""
        num_conns = self.nr_conns
        while self.nr_conns == num_conns and (conn := self._first_to_go(besides)):
            if self._still_waits(conn):
                self._let_go(conn)

    def _first_to_go(self, besides: PolledConnection | None) -> PolledConnection | None:
        for address in self._crowded:
            if self._has_too_many(address):
                return self._waiting.oldest_of(address)
        return self._waiting.oldest(besides)

    def _still_waits(self, conn: PolledConnection) -> bool:
        """Returns whether a connection still waits after reading everything it has sent, which may
        be its whole request."""
        wait = conn.wait
        while conn.wait is wait is not Wait.CLOSE and polling(conn.sock).poll(0):
            self._receive(conn)
        return conn.wait is wait

    def _has_room_for_bytes_of(self, conn: PolledConnection) -> bool:
        """Returns whether `conn` could be kept, after closing others that hold more bytes."""
        max_request_bytes = MAX_HEAD_BYTES + self.limits.max_body_bytes
        while self._waiting.num_held_bytes > self.limits.max_held_requests * max_request_bytes:
            largest = self._waiting.largest()
            if largest is None or largest.num_held_bytes < conn.num_held_bytes:
                largest = conn
            self._turn_away(largest)
            if largest is conn:
                return False
        return True

    def _patience_s(self, conn: PolledConnection, wait: Wait) -> float:
        """Returns the time to wait from `since_s` on; for a body as in Apache's mod_reqtimeout."""
        if wait is Wait.CLOSE:
            return LINGER_S
        if wait is Wait.NEXT_REQUEST:
            return float(self.cfg.keepalive)
        if conn.parser.request is None:
            return self.limits.head_timeout_s
        body_s = conn.parser.num_body_bytes / self.limits.min_body_bytes_per_s
        return self.limits.body_timeout_s + body_s

    def _turn_away(self, conn: PolledConnection) -> None:
        """Refuses a request to make room, and gives the client time to read that."""
        self._num_let_go += 1
        _send(conn.sock, _refusal(TooManyConnections()))
        self._linger(conn)

    def _let_go(self, conn: PolledConnection) -> None:
        """Refuses a request because its place is needed at once. A connection that expects no
        answer is just closed."""
        self._num_let_go += 1
        if conn.wait is Wait.REQUEST:
            _send(conn.sock, _refusal(TooManyConnections()))
        self._close(conn)

    def _time_out(self, conn: PolledConnection) -> None:
        if conn.wait is Wait.CLOSE or not conn.parser.has_begun:
            self._close(conn)
            return
        error = RequestTimeout(
            self.limits.head_timeout_s, self.limits.body_timeout_s, self.limits.min_body_bytes_per_s
        )
        self._refuse(conn, error)

    def _refuse(self, conn: PolledConnection, error: WireError) -> None:
        logger.info("refused a request of %s: %d %s", conn.address, error.status, error.code)
        _send(conn.sock, _refusal(error))
        self._linger(conn)

    def _linger(self, conn: PolledConnection) -> None:
        """Close our side and wait for the client to close, so that it gets the last bytes."""
        try:
            conn.sock.setblocking(False)
            conn.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(conn)
            return
        conn.since_s = time.monotonic()
        self._waiting.hold(conn, 0)
        self._await(conn, Wait.CLOSE)

    def _discard(self, conn: PolledConnection, num_bytes: int) -> None:
        conn.num_discarded_bytes += num_bytes
        if conn.num_discarded_bytes > LINGER_BYTES:
            self._close(conn)

    def _close(self, conn: PolledConnection) -> None:
        self._waiting.remove(conn)
        self._waiting.hold(conn, 0)
        self._set_polled(conn, False)
        self.nr_conns -= 1
        conn.close()

    def _set_polled(self, conn: PolledConnection, is_polled: bool) -> None:
        if is_polled and not conn.is_polled:
            on_readable = partial(self._on_readable, conn)
            self.poller.register(conn.sock, selectors.EVENT_READ, on_readable)
        elif conn.is_polled and not is_polled:
            self.poller.unregister(conn.sock)
        conn.is_polled = is_polled


def polling_worker(limits: ConnectionLimits) -> type[PollingWorker]:
    """Returns a `worker_class` for gunicorn with these limits."""
    return type("PollingWorker", (PollingWorker,), {"limits": limits})


def _refusal(error: WireError) -> bytes:
    body = json.dumps(error.body()).encode()
    headers = content_headers("application/json", body)
    if error.retry_after_s is not None:
        headers.append(("Retry-After", f"{error.retry_after_s}"))
    return answer_head(error.status, headers, closes=True) + body


def _send(sock: socket.socket, data: bytes) -> None:
    """Sends a few bytes to a client that may have left, or may not read."""
    with suppress(OSError):
        sock.send(data)
