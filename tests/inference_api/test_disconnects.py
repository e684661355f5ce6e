"""A hang-up is noticed without reading, once, and not after the watch has ended."""

import socket
from collections.abc import Iterator
from threading import Event

import pytest

from inference_api.disconnects import DisconnectWatcher

SOON_S = 10.0
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
