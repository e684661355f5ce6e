"""A hang-up ends the exchange it belongs to, and no other."""

import os
import select
import socket
import threading
from collections.abc import Callable

import pytest

from proxy.exchange import Exchange, RunningExchanges
from proxy.heads import PendingHeads
from proxy.watcher import Watcher
from tests.proxy.support import DEADLINE_S


class SlowEpoll:
    """The kernel's, with something happening between its first event and who hears of it."""

    def __init__(self, epoll: select.epoll, meanwhile: Callable[[], None]) -> None:
        self._epoll = epoll
        self._meanwhile: Callable[[], None] | None = meanwhile
        self.register, self.unregister = epoll.register, epoll.unregister
        self.close = epoll.close

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        events = self._epoll.poll(timeout_s)
        if events and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        return events


def test_a_late_hang_up_spares_the_client_that_has_its_socket_number_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watcher = Watcher(RunningExchanges(), PendingHeads(60), 60)
    left, left_peer = socket.socketpair()
    present, present_peer = socket.socketpair()
    ended = Exchange(left)
    running = Exchange(present)
    has_changed_hands = threading.Event()

    def change_hands() -> None:
        watcher.unwatch(ended)
        number = left.detach()
        os.dup2(present.fileno(), number)  # as if the kernel had given it the free number
        present.close()
        running.client = socket.socket(fileno=number)
        watcher.watch(running)
        has_changed_hands.set()

    epoll = SlowEpoll(select.epoll(), change_hands)
    monkeypatch.setattr("proxy.watcher.select.epoll", lambda: epoll)
    watcher.start()
    watcher.watch(ended)
    left_peer.close()
    assert has_changed_hands.wait(DEADLINE_S)
    watcher.stop()
    assert running.abort_reason is None
    assert ended.abort_reason is None
    present_peer.close()
    running.client.close()
