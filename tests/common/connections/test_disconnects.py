"""A hang-up is noticed without reading, once, and not after the watch has ended."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from threading import Event

import pytest

from common.connections.disconnects import DisconnectWatcher
from lab.kit.servers import TIMEOUT_S

SOON_S = TIMEOUT_S
BRIEFLY_S = 0.1


@pytest.fixture
def watcher() -> Iterator[DisconnectWatcher]:
    watcher = DisconnectWatcher()
    watcher.start()
    yield watcher
    watcher.stop()


def test_closed_peer_is_reported(watcher: DisconnectWatcher) -> None:
    ours, peer = socket.socketpair()
    gone = Event()
    unwatch = watcher.watch(ours, gone.set)
    peer.close()
    assert gone.wait(SOON_S)
    unwatch()
    ours.close()


def test_early_data_is_no_hang_up_and_stays_unread(watcher: DisconnectWatcher) -> None:
    ours, peer = socket.socketpair()
    gone = Event()
    unwatch = watcher.watch(ours, gone.set)
    peer.sendall(b"next request")
    assert not gone.wait(BRIEFLY_S)
    assert ours.recv(100) == b"next request"
    peer.close()
    assert gone.wait(SOON_S)
    unwatch()
    ours.close()


def test_nothing_is_reported_after_the_watch_has_ended(watcher: DisconnectWatcher) -> None:
    ours, peer = socket.socketpair()
    gone = Event()
    watcher.watch(ours, gone.set)()
    peer.close()
    assert not gone.wait(BRIEFLY_S)
    ours.close()


def test_failing_callback_does_not_end_the_watching(watcher: DisconnectWatcher) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    first, first_peer = socket.socketpair()
    second, second_peer = socket.socketpair()
    gone = Event()
    ends = [watcher.watch(first, fail), watcher.watch(second, gone.set)]
    first_peer.close()
    second_peer.close()
    assert gone.wait(SOON_S)
    for end in ends:
        end()
    first.close()
    second.close()


def test_one_socket_may_be_watched_twice(watcher: DisconnectWatcher) -> None:
    ours, peer = socket.socketpair()
    first, second = Event(), Event()
    ends = [watcher.watch(ours, first.set), watcher.watch(ours, second.set)]
    ends[0]()
    peer.close()
    assert second.wait(SOON_S)
    assert not first.is_set()
    ends[1]()
    ours.close()


def test_watch_may_end_twice_and_after_its_socket_was_closed(watcher: DisconnectWatcher) -> None:
    ours, peer = socket.socketpair()
    first, second = Event(), Event()
    unwatch, unwatch_too = watcher.watch(ours, first.set), watcher.watch(ours, second.set)
    unwatch()
    ours.close()
    unwatch()
    unwatch_too()
    unwatch_too()
    peer.close()
    assert not first.is_set()
    assert not second.is_set()


def test_socket_that_was_closed_unwatched_leaves_its_number_to_the_next(
    watcher: DisconnectWatcher,
) -> None:
    closed, closed_peer = socket.socketpair()
    ours, peer = socket.socketpair()
    closed_gone, gone = Event(), Event()
    number = closed.fileno()
    unwatch_closed = watcher.watch(closed, closed_gone.set)
    closed.close()
    following = socket.socket(fileno=os.dup2(ours.fileno(), number))
    unwatch = watcher.watch(following, gone.set)
    unwatch_closed()
    peer.close()
    assert gone.wait(SOON_S)
    assert not closed_gone.is_set()
    unwatch()
    for each in (following, ours, closed_peer):
        each.close()


class LockWithDelay:
    """A lock before which something happens once, on the thread that reports hang-ups."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._meanwhile: Callable[[], None] | None = meanwhile

    def __enter__(self) -> None:
        if threading.current_thread().name == "disconnects" and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_socket_that_inherits_a_number_is_spared(watcher: DisconnectWatcher) -> None:
    first, first_peer = socket.socketpair()
    second, second_peer = socket.socketpair()
    first_gone, second_gone, has_changed = Event(), Event(), Event()

    def meanwhile() -> None:
        unwatch_first()
        os.dup2(second.fileno(), first.fileno())
        unwatch.append(watcher.watch(first, second_gone.set))
        has_changed.set()

    unwatch: list[Callable[[], None]] = []
    unwatch_first = watcher.watch(first, first_gone.set)
    watcher._lock = LockWithDelay(meanwhile)  # type: ignore[assignment]
    first_peer.close()
    assert has_changed.wait(SOON_S)
    assert not second_gone.wait(BRIEFLY_S)
    second_peer.close()
    assert second_gone.wait(SOON_S)
    assert not first_gone.is_set()
    unwatch[0]()
    first.close()
    second.close()
