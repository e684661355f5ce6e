"""One thread that notices what blocked request threads cannot: clients leaving, time passing.

A request thread that waits for a token sits in a read of the upstream's socket. Should its
client leave meanwhile, nothing tells it before the next write. This thread keeps an epoll set of
all clients' sockets and aborts the exchange of each that hangs up. Between events it cuts off
clients that take no bytes or do not finish their head, and ends the drain. Linux only.
"""

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable

from proxy.exchange import Exchange, Outcome, RunningExchanges
from proxy.heads import PendingHeads

log = logging.getLogger(__name__)

TICK_S = 0.2
# A client whose machine died sends no FIN. Its silence is found by keepalive probes while we
# wait, and by unacknowledged bytes while we send.
KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3


class Watcher:
    """Owned by the app, which starts and joins it. `watch` and `unwatch`: request threads."""

    def __init__(
        self, running: RunningExchanges, heads: PendingHeads, client_timeout_s: float
    ) -> None:
        self._running = running
        self._heads = heads
        self._client_timeout_s = client_timeout_s
        self._lock = threading.Lock()
        self._exchange_by_fd: dict[int, Exchange] = {}
        self._drain_deadline_s: float | None = None
        self._on_drained: Callable[[], None] | None = None
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._epoll: select.epoll

    def start(self) -> None:
        # Neither is made earlier: the app may be built before gunicorn forks. An epoll set would
        # be shared across the fork, and a thread object counts as ended after it.
        self._epoll = select.epoll()
        self._thread = threading.Thread(target=self._run, name="proxy-watcher", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        self._is_stopping = True
        if self._thread is not None:
            self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_draining(self) -> bool:
        return self._drain_deadline_s is not None

    def begin_drain(self, timeout_s: float, on_drained: Callable[[], None]) -> None:
        """Call `on_drained` once nothing runs; what still runs after `timeout_s` is cut.

        Plain assignments only: this is called from a signal handler, where a lock could be
        held by the very code that was interrupted.
        """
        if not self.is_draining:
            self._on_drained = on_drained
            self._drain_deadline_s = time.monotonic() + timeout_s

    def watch(self, exchange: Exchange) -> None:
        if exchange.client is None:
            return
        fd = exchange.client.fileno()
        with self._lock:
            exchange.watched_fd = fd
            self._exchange_by_fd[fd] = exchange
            # Hang-ups only, not input: the next request of a pipelining client is no event.
            self._epoll.register(fd, select.EPOLLRDHUP)

    def unwatch(self, exchange: Exchange) -> None:
        """Before gunicorn closes or reuses the socket: its number may soon be another's."""
        with self._lock:
            self._forget(exchange)

    def _forget(self, exchange: Exchange) -> None:
        fd, exchange.watched_fd = exchange.watched_fd, None
        if fd is None:
            return
        del self._exchange_by_fd[fd]
        with contextlib.suppress(OSError):  # closed already, and thereby out of the set
            self._epoll.unregister(fd)

    def _run(self) -> None:
        try:
            next_tick_s = 0.0
            while not self._is_stopping:
                if self._epoll.poll(TICK_S):
                    self._abort_left()
                now_s = time.monotonic()
                if now_s >= next_tick_s:
                    next_tick_s = now_s + TICK_S
                    self._tick(now_s)
        except Exception:
            log.exception("the watcher has died; /health says so")
        finally:
            self._epoll.close()

    def _abort_left(self) -> None:
        """Abort the exchanges whose clients have hung up.

        Asked again under the lock: the exchange that an earlier event was about may have ended
        since, and another client's socket have taken over its number.
        """
        with self._lock:
            left = [self._exchange_by_fd[fd] for fd, _ in self._epoll.poll(0)]
            for exchange in left:
                self._forget(exchange)
        for exchange in left:
            exchange.abort(Outcome.CLIENT_GONE)

    def _tick(self, now_s: float) -> None:
        self._heads.cut_late(now_s)
        for exchange in self._running.snapshot():
            exchange.abort_if_stalled(now_s, self._client_timeout_s)
        if self._drain_deadline_s is None or self._on_drained is None:
            return
        if now_s >= self._drain_deadline_s:
            for exchange in self._running.snapshot():
                exchange.abort(Outcome.DRAINED)
        if len(self._running) == 0:
            on_drained, self._on_drained = self._on_drained, None
            on_drained()


def probe_silent_peer(client: socket.socket, timeout_s: float) -> None:
    """Once per connection: have the kernel find out that its other end is no more."""
    if client.family == socket.AF_UNIX:
        return
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1000))
