"""Notices at once when a client hangs up, even if nothing is being written to it.

One thread waits in epoll for the hang-up of every watched socket. It never reads, so a client may
send its next request early. Sockets must be plain; end TLS before Hearth.
"""

import logging
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock, Thread

logger = logging.getLogger(__name__)

HANG_UP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
POLL_S = 0.5  # interval at which `stop` is noticed
JOIN_TIMEOUT_S = 5.0


@dataclass(eq=False, slots=True)
class _Watched:
    client: socket.socket
    callbacks: list[Callable[[], None]] = field(default_factory=list)


class DisconnectWatcher:
    """Calls back when clients hang up, on a thread of its own: keep callbacks short. Any thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, _Watched] = {}  # keys: file descriptors
        self._lock = Lock()  # held to watch, unwatch and report a socket
        self._is_stopping = False
        self._thread = Thread(target=self._run, name="disconnects", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping = True
        if self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT_S)

    def watch(self, client: socket.socket, on_hang_up: Callable[[], None]) -> Callable[[], None]:
        """Call `on_hang_up` if the client hangs up. Returns a function that ends the watch; it may
        be called twice, and after the socket was closed.

        A socket may have several watches, because a connection may wait for several generations.
        Each new watch may cause earlier ones to be called again.
        """
        descriptor = client.fileno()
        if descriptor < 0:  # already closed
            on_hang_up()
            return lambda: None
        with self._lock:
            watched, arm = self._watched.get(descriptor), self._epoll.modify
            # A new socket may have the descriptor of a closed one.
            if watched is None or watched.client is not client:
                watched, arm = _Watched(client), self._epoll.register
            arm(descriptor, HANG_UP | select.EPOLLONESHOT)
            self._watched[descriptor] = watched
            watched.callbacks.append(on_hang_up)

        def unwatch() -> None:
            with self._lock:
                with suppress(ValueError):  # the watch has ended
                    watched.callbacks.remove(on_hang_up)
                if not watched.callbacks and self._watched.get(descriptor) is watched:
                    del self._watched[descriptor]
                    with suppress(OSError):  # epoll drops closed sockets by itself
                        self._epoll.unregister(descriptor)

        return unwatch

    def _run(self) -> None:
        something_happened = select.poll()
        something_happened.register(self._epoll, select.POLLIN)
        while not self._is_stopping:
            if not something_happened.poll(1000 * POLL_S):
                continue
            # Before the lock is taken, the watch may end and its descriptor belong to another
            # client.
            with self._lock:
                hung_up = [self._watched.get(number) for number, _ in self._epoll.poll(0)]
                callbacks = [each for watched in hung_up if watched for each in watched.callbacks]
            for on_hang_up in callbacks:
                try:
                    on_hang_up()
                except Exception:
                    logger.exception("a hang-up could not be handled")
