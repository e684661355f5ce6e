"""Clients that take their answers slowly or not at all, at the sockets of a real proxy."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
import requests

from tests.proxy.support import (
    AUTH,
    DEADLINE_S,
    Peer,
    ProxyProcess,
    ScriptedUpstream,
    gauge,
    post_bytes,
    receive,
    running_proxy,
    slow_reader,
    until,
    worker_of,
)

STALL_S = 0.5  # that an upstream may be silent
PATIENCE_S = 3.0  # that a client may take nothing
PAUSE_S = 0.6  # of a slow reader: beyond the one, and far below the other


@pytest.fixture(scope="module")
def hasty(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    directory: Path = tmp_path_factory.mktemp("hasty")
    with running_proxy(
        directory,
        upstream.url,
        CLIENT_TIMEOUT=str(PATIENCE_S),
        STREAM_STALL_TIMEOUT=str(STALL_S),
    ) as process:
        yield process
        until(lambda: gauge(process, "hearth_proxy_in_flight") == 0, "no request is left")


def flood(peer: Peer) -> None:
    """An endless stream, as fast as it is taken."""
    peer.begin_stream()
    while True:
        peer.chunk(b"x" * 65536)


def test_slow_readers_hold_their_upstream_back_and_take_little_memory(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    upstream.scripts["/flood"] = flood
    worker = worker_of(proxy)
    before = worker.memory_full_info().uss
    with ExitStack() as stack:
        for _ in range(50):
            sock = stack.enter_context(slow_reader(proxy))
            sock.sendall(post_bytes("/flood"))
        until(lambda: gauge(proxy, "hearth_proxy_in_flight") == 50, "50 streams")
        for _ in range(50):
            assert requests.get(proxy.url + "/health", timeout=DEADLINE_S).ok
            assert worker.memory_full_info().uss - before < 50 * 512 * 1024
    until(lambda: gauge(proxy, "hearth_proxy_in_flight") == 0, "their end")


def test_readers_that_take_nothing_are_cut_off(
    hasty: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    upstream.scripts["/flood"] = flood

    def outcomes() -> list[object]:
        return [line["outcome"] for line in hasty.audit() if line["route"] == "/flood"]

    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(slow_reader(hasty)).sendall(post_bytes("/flood"))
        until(lambda: len(outcomes()) == 50, "their lines")
    assert outcomes() == ["client_stalled"] * 50


def test_readers_of_short_answers_stall_too(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """The kernel watches the bytes that it has taken, the proxy those that it keeps."""
    is_over = threading.Event()

    def answer(peer: Peer, num_bytes: int) -> None:
        peer.begin_stream()
        peer.chunk(b"x" * num_bytes)
        is_over.wait(DEADLINE_S)

    paths = {f"/short-{num_bytes}": num_bytes for num_bytes in (30_000, 200_000, 3_000_000)}
    upstream.scripts |= {path: partial(answer, num_bytes=size) for path, size in paths.items()}
    with running_proxy(tmp_path, upstream.url, CLIENT_TIMEOUT="1") as proxy, ExitStack() as stack:
        for path in paths:
            stack.enter_context(closing(slow_reader(proxy))).sendall(post_bytes(path))
        outcomes = {path: proxy.audit_of(path)["outcome"] for path in paths}
        is_over.set()
    assert outcomes == dict.fromkeys(paths, "client_stalled")


def test_reader_that_is_only_slow_is_not_cut_off(
    hasty: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    upstream.scripts["/patient"] = flood
    with closing(slow_reader(hasty)) as sock:
        sock.sendall(post_bytes("/patient"))
        for _ in range(int(PATIENCE_S / PAUSE_S) + 1):
            taken = 0
            while taken < 100_000:
                taken += len(receive(sock))
            time.sleep(PAUSE_S)  # the client's pace
        assert requests.get(hasty.url + "/ready", timeout=DEADLINE_S).status_code == 200, (
            "held back by its reader, the stream says nothing against its upstream"
        )
    assert hasty.audit_of("/patient")["outcome"] == "client_gone"


def test_slow_readers_get_the_end_of_their_answers(
    hasty: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    """Also when that waits here alone, with nothing behind it any more."""
    size, pauses = 500_000, int(PATIENCE_S / PAUSE_S) + 1
    endings = {"/tail/kept": AUTH, "/tail/last": AUTH + b"Connection: close\r\n"}
    with ExitStack() as stack:
        received = {}
        for path, headers in endings.items():
            upstream.scripts[path] = lambda peer: peer.reply(b"x" * size)
            sock = stack.enter_context(slow_reader(hasty))
            sock.sendall(post_bytes(path, headers))
            received[sock] = 0
        for number in range(1, pauses + 1):
            time.sleep(PAUSE_S)  # the clients' pace
            for sock in received:
                while received[sock] < number * size // pauses:
                    received[sock] += len(receive(sock))
    for path in endings:
        assert hasty.audit_of(path)["outcome"] == "complete"
