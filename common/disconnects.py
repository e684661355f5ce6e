"""Notices at once that a client has hung up, also while nothing is being written to it.

One thread waits in epoll for the hang-up of every watched socket. It never reads: a client that
has sent its next request early stays untouched. Sockets must be plain; end TLS before Hearth.
"""

import logging
import select
import socket
from collections.abc import Callable
from threading import Lock, Thread

logger = logging.getLogger(__name__)

HANG_UP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
POLL_S = 0.5  # how soon `stop` is noticed
JOIN_TIMEOUT_S = 5.0


class DisconnectWatcher:
    """Any thread may watch and unwatch. Callbacks run on the watcher's thread: keep them short."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, list[Callable[[], None]]] = {}  # by file descriptor
        self._lock = Lock()  # a socket is watched, unwatched and reported under it
        self._is_stopping = False
        self._thread = Thread(target=self._run, name="disconnects", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping = True
        if self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT_S)

    def watch(self, client: socket.socket, on_hang_up: Callable[[], None]) -> Callable[[], None]:
        """Call `on_hang_up` if the client goes. Returns the function that ends the watch.

        A socket may be watched several times: one connection may wait for several generations.
        Each watch asks anew, so an earlier one may be called again.
        """
        descriptor = client.fileno()
        if descriptor < 0:  # closed already
            on_hang_up()
            return lambda: None
        with self._lock:
            arm = self._epoll.modify if descriptor in self._callbacks else self._epoll.register
            arm(descriptor, HANG_UP | select.EPOLLONESHOT)
            self._callbacks.setdefault(descriptor, []).append(on_hang_up)

        def unwatch() -> None:
            with self._lock:
                self._callbacks[descriptor].remove(on_hang_up)
                if not self._callbacks[descriptor]:
                    del self._callbacks[descriptor]
                    self._epoll.unregister(descriptor)

        return unwatch

    def _run(self) -> None:
        something_happened = select.poll()
        something_happened.register(self._epoll, select.POLLIN)
        while not self._is_stopping:
            if not something_happened.poll(1000 * POLL_S):
                continue
            with (
                self._lock
            ):  # before it a watch may end, and another client's socket be so numbered
                hung_up = [descriptor for descriptor, _ in self._epoll.poll(0)]
                callbacks = [each for number in hung_up for each in self._callbacks[number]]
            for on_hang_up in callbacks:
                try:
                    on_hang_up()
                except Exception:
                    logger.exception("a hang-up could not be handled")
