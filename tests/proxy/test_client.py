"""Slow, hasty and hostile clients at the sockets of a real proxy."""

import asyncio
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from proxy.clients import client as client_module
from proxy.clients.client import ClientConnection, Exchange
from proxy.clients.crowd import GRACE_S, Crowd
from proxy.errors import ProxyError
from proxy.settings import Settings
from tests.proxy.support import (
    AUTH,
    DEADLINE_S,
    Peer,
    ProxyProcess,
    ScriptedUpstream,
    bearer,
    gauge,
    make_token,
    post_bytes,
    receive,
    running_proxy,
    slow_reader,
    until,
    worker_of,
)

PROBE = b"GET /health HTTP/1.1\r\nHost: p\r\n\r\n"
MIB = 1024 * 1024
POLICY = "teams:\n  spent: {requests_per_minute: 1}\n"
NUM_SILENT = 2000


@pytest.fixture(scope="module")
def hasty(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """A proxy with little patience."""
    directory: Path = tmp_path_factory.mktemp("hasty")
    (directory / "policy.yaml").write_text(POLICY)
    with running_proxy(
        directory,
        upstream.url,
        POLICY_FILE=str(directory / "policy.yaml"),
        KEEPALIVE_TIMEOUT="0.5",
        CLIENT_TIMEOUT="1",
        BODY_TIMEOUT="0.5",
        MIN_BODY_RATE="50000",
        STREAM_STALL_TIMEOUT="0.5",
    ) as process:
        yield process
        until(lambda: gauge(process, "hearth_proxy_in_flight") == 0, "no request is left")
        until(lambda: gauge(process, "hearth_proxy_connections") == 0, "no connection is left")


def read_answer(sock: socket.socket) -> bytes:
    """One with a Content-Length."""
    received = b""
    while not (head := received.partition(b"\r\n\r\n"))[1]:
        received += receive(sock)
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head[0])
    while len(received) < len(head[0]) + 4 + int(length[1] if length else 0):
        received += receive(sock)
    return received


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1000) == b""
    except ConnectionError:
        return True


def test_idle_connection_is_closed_after_its_time(hasty: ProxyProcess) -> None:
    with hasty.connect() as sock:
        sock.sendall(PROBE)
        assert read_answer(sock).startswith(b"HTTP/1.1 200 ")
        assert is_closed(sock)


@pytest.mark.parametrize(
    ("path", "headers", "length", "status"),
    [
        ("/x", b"", MIB, b"401"),
        ("/x", b"Authorization: Bearer x\r\n", MIB, b"401"),
        ("/x", f"Authorization: Bearer {make_token(role='team')}\r\n".encode(), MIB, b"404"),
        ("/drain", f"Authorization: Bearer {make_token(role='team')}\r\n".encode(), MIB, b"403"),
        ("/x", f"Authorization: Bearer {make_token(team_id='spent')}\r\n".encode(), MIB, b"429"),
        ("/x", AUTH, 10**9, b"413"),
        ("/login", b"Sec-Fetch-Site: same-origin\r\n", MIB, b"413"),
        ("/./x", AUTH, MIB, b"400"),
    ],
)
@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
def test_refusal_comes_before_any_of_the_body(
    hasty: ProxyProcess, path: str, headers: bytes, length: int, status: bytes, expect: bytes
) -> None:
    if status == b"429":
        requests.get(hasty.url + "/x", headers=bearer(team_id="spent"), timeout=DEADLINE_S)
    with hasty.connect() as sock:
        head = f"POST {path} HTTP/1.1\r\nHost: p\r\nContent-Length: {length}\r\n".encode()
        sock.sendall(head + headers + expect + b"\r\n")
        answer = read_answer(sock)
    assert answer[:13] == b"HTTP/1.1 " + status + b" "
    assert b"\r\nConnection: close\r\n" in answer


def test_client_that_asks_is_told_to_go_on_once(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    with proxy.connect() as sock:
        head, _, _ = post_bytes("/asked").partition(b"\r\n\r\n")
        sock.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"{")
        sock.sendall(b"}")
        assert read_answer(sock).startswith(b"HTTP/1.1 200 ")
    (seen,) = upstream.seen("/asked")
    assert (seen.body, "expect" in seen.headers) == (b"{}", False)


def test_body_earns_the_time_that_its_rest_may_take(hasty: ProxyProcess) -> None:
    body = b"x" * 1_500_000
    head = b"POST /paced HTTP/1.1\r\nHost: p\r\n" + AUTH + b"Content-Length: 1500000\r\n\r\n"
    with hasty.connect() as quick, hasty.connect() as slow:
        quick.sendall(head + body[:-1])
        slow.sendall(head)
        until(lambda: (answer := trickled(slow)) and answer.startswith(b"HTTP/1.1 408 "), "408")
        quick.sendall(body[-1:])  # beyond BODY_TIMEOUT too, of which the slow one was told
        assert read_answer(quick).startswith(b"HTTP/1.1 200 ")


def trickled(sock: socket.socket) -> bytes:
    """What comes back, or else one more byte is sent."""
    sock.settimeout(0.05)
    with suppress(TimeoutError):
        return sock.recv(1000)
    sock.sendall(b"x")
    return b""


def test_pipelined_requests_are_answered_in_order(hasty: ProxyProcess) -> None:
    asked = [post_bytes(f"/pipelined/{number}") for number in range(200)]
    received = hasty.raw(b"".join(asked), num_answers=200)
    targets = re.findall(rb'"target": "/pipelined/(\d+)"', received)
    assert targets == [b"%d" % number for number in range(200)]


@pytest.mark.parametrize(
    "refused", [post_bytes("/x", b""), post_bytes("/y", b"Authorization: x\r\n")]
)
def test_connection_goes_on_after_a_refusal(proxy: ProxyProcess, refused: bytes) -> None:
    with proxy.connect() as sock:
        for _ in range(3):
            sock.sendall(refused)
            assert read_answer(sock).startswith(b"HTTP/1.1 401 ")
        sock.sendall(post_bytes("/z"))
        assert read_answer(sock).startswith(b"HTTP/1.1 200 ")


def test_client_that_pipelines_and_never_reads_is_held_back_and_cut_off(
    hasty: ProxyProcess,
) -> None:
    """It needs no token, and its answers are larger than what it sends."""
    worker, sock = worker_of(hasty), slow_reader(hasty)
    before, sent, num_sent = worker.memory_full_info().uss, PROBE * 2000, 0
    with closing(sock):
        sock.settimeout(0.2)
        ending = time.monotonic() + DEADLINE_S
        with suppress(ConnectionError):
            while time.monotonic() < ending:
                with suppress(TimeoutError):
                    num_sent += sock.send(sent)
                assert worker.memory_full_info().uss - before < 16 * MIB
    assert time.monotonic() < ending, f"not cut off after {num_sent} bytes"


def test_client_that_pipelines_megabytes_behind_a_stream_is_held_back(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    has_left = threading.Event()

    def stream(peer: Peer) -> None:
        peer.begin_stream()
        has_left.wait(DEADLINE_S)
        while True:
            peer.chunk(b"x")

    upstream.scripts["/behind"] = stream
    worker = worker_of(proxy)
    before, sent, num_sent = worker.memory_full_info().uss, post_bytes("/later") * 1000, 0
    with proxy.begin("/behind") as sock:
        sock.recv(1000)
        sock.settimeout(0.3)
        with suppress(TimeoutError):
            while num_sent < 64 * MIB:
                num_sent += sock.send(sent)
        assert num_sent < 32 * MIB
        assert worker.memory_full_info().uss - before < 8 * MIB
        assert proxy.metric("/health") == "OK"
    has_left.set()
    until(lambda: gauge(proxy, "hearth_proxy_upstream_in_flight") == 0, "the stream's end")


@pytest.mark.parametrize("is_taken", [True, False])
def test_lingering_connection_is_closed_once_nothing_is_taken(is_taken: bool) -> None:
    """Its last answer may take longer than a client has to close."""

    async def run() -> bool:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            transport = Transport(ours)
            client = ClientConnection(Crowd(9, 9), Refusing(), Settings())
            client.connection_made(transport)  # type: ignore[arg-type]
            client.data_received(b"\0")
            transport.num_unsent = 1000
            client.expire()
            assert not transport.is_closed
            transport.num_unsent -= is_taken
            client.expire()
            return transport.is_closed

    assert asyncio.run(run()) is not is_taken


@pytest.mark.parametrize(("sent", "is_recorded"), [(b"", False), (b"GET / HT", True)])
def test_who_is_one_too_many_is_told(sent: bytes, is_recorded: bool) -> None:
    """Also where nothing of a request has come, as it may be on its way."""

    async def run() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            crowd, service = Crowd(9, 1), Refusing()
            transports = [Transport(ours) for _ in range(2)]
            for transport in transports:
                client = ClientConnection(crowd, service, Settings())
                client.connection_made(transport)  # type: ignore[arg-type]
                if sent:
                    client.data_received(sent)
            crowd.sweep(asyncio.get_running_loop().time() + GRACE_S)
            assert [transport.sent for transport in transports] == [b"no", b""]
            assert [transport.is_closed for transport in transports] == [True, False]
            (error,) = service.errors
            assert (error.status, error.retry_after_s) == (503, 1)
            assert service.num_recorded == is_recorded

    asyncio.run(run())


class Refusing:
    is_draining = False

    def __init__(self) -> None:
        self.errors: list[ProxyError] = []
        self.num_recorded = 0

    def begin(self, exchange: Exchange) -> None: ...

    def refuse(self, error: ProxyError, *, is_recorded: bool = True) -> bytes:
        self.errors.append(error)
        self.num_recorded += is_recorded
        return b"no"


class Transport:
    """As much of one as an answer's end needs."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.num_unsent = 0
        self.sent = b""
        self.is_paused = False
        self.is_closed = False

    def get_extra_info(self, name: str) -> object:
        return {"socket": self.sock, "peername": ("192.0.2.1", 1)}.get(name)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.num_unsent

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True

    close = abort

    def write(self, data: bytes) -> None:
        self.sent += data

    def write_eof(self) -> None: ...

    def resume_reading(self) -> None:
        self.is_paused = False

    def pause_reading(self) -> None:
        self.is_paused = True


class Answering:
    """Ends an answer when it is told to, and knows what was asked."""

    is_draining = False

    def __init__(self) -> None:
        self.exchange: Exchange | None = None
        self.asked: list[tuple[str, bytes]] = []

    def begin(self, exchange: Exchange) -> None:
        self.exchange = exchange

    async def answer(self) -> None:
        exchange = self.exchange
        if exchange is not None and exchange.body.is_ended:
            self.exchange = None
            if not exchange.body.is_empty:
                await exchange.body.read_prefix(1000)
            self.asked.append((exchange.head.target, exchange.body.prefix))
            exchange.client.must_close()
            exchange.client.end_answer()

    def refuse(self, error: ProxyError, *, is_recorded: bool = True) -> bytes:
        raise error


@given(st.data())
def test_requests_are_read_in_order_however_their_bytes_and_answers_meet(
    data: st.DataObject,
) -> None:
    numbers = range(data.draw(st.integers(1, 5)))
    bodies = [data.draw(st.sampled_from((b"", b"GET / HTTP/1.1\r\n\r\n", b"x"))) for _ in numbers]
    targets = [f"/{number}" for number in numbers]
    sent = b"".join(post_bytes(*each) for each in zip(targets, repeat(b""), bodies))
    cuts = data.draw(st.sets(st.integers(0, len(sent)), max_size=12))

    async def run() -> Answering:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            service = Answering()
            transport = Transport(ours)
            client = ClientConnection(Crowd(9, 9), service, Settings())
            client.connection_made(transport)  # type: ignore[arg-type]
            for start, end in pairwise(sorted({0, len(sent), *cuts})):
                for _ in numbers:
                    if transport.is_paused:
                        await service.answer()
                        await asyncio.sleep(0)
                assert not transport.is_paused
                client.data_received(sent[start:end])
                for _ in range(data.draw(st.integers(0, 3))):
                    await (service.answer() if data.draw(st.booleans()) else asyncio.sleep(0))
            for _ in numbers:
                await service.answer()
                await asyncio.sleep(0)
        return service

    with patch.object(client_module, "MAX_PIPELINED_BYTES", 50):
        assert asyncio.run(run()).asked == [*zip(targets, bodies, strict=True)]


def test_client_that_leaves_behind_a_large_body_is_noticed(
    hasty: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    closed: list[bool] = []
    has_come = threading.Event()  # the whole body: less of it would start no script

    def script(peer: Peer) -> None:
        has_come.set()
        closed.append(peer.wait_until_closed_by_proxy())

    upstream.scripts["/left"] = script
    for size in (200_000, 262_145, 300_000, 700_000):
        has_come.clear()
        with hasty.connect() as sock:
            sock.sendall(post_bytes("/left", body=b"x" * size))
            assert has_come.wait(DEADLINE_S)
        until(lambda: gauge(hasty, "hearth_proxy_upstream_in_flight") == 0, f"its end at {size}")
    until(lambda: len(closed) == 4, "the upstream's view of it")
    assert closed == [True] * 4


def test_thousands_that_send_nothing_or_one_byte_keep_nobody_out(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * NUM_SILENT + 1000
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, wanted), hard))
    may_go_on = threading.Event()

    def stream(peer: Peer) -> None:
        peer.begin_stream()
        may_go_on.wait(DEADLINE_S)
        peer.chunk(b"x")

    upstream.scripts["/among"] = stream
    bounds: dict[str, Any] = {"PROXY_CONNECTIONS": "1000", "MAX_WAITING_PER_ADDRESS": "100"}
    with (
        ExitStack() as stack,
        running_proxy(tmp_path, upstream.url, **bounds, HEAD_TIMEOUT="3600") as proxy,
    ):
        streams = [stack.enter_context(proxy.begin("/among")) for _ in range(8)]
        for sock in streams:
            assert b"200 OK" in sock.recv(1000)
        for number in range(2 * NUM_SILENT):
            sock = stack.enter_context(proxy.connect())
            if number % 2:
                with suppress(ConnectionError):
                    sock.sendall(b"G")
            if number % 400 == 399:
                assert requests.get(proxy.url + "/health", timeout=DEADLINE_S).ok
                assert requests.get(proxy.url + "/x", headers=bearer(), timeout=DEADLINE_S).ok
        until(lambda: gauge(proxy, "hearth_proxy_connections") < 120, "few are left of them")
        may_go_on.set()
        for sock in streams:
            assert receive(sock)
        assert worker_of(proxy).memory_full_info().uss < 200 * MIB


def test_clients_that_vanish_at_any_point_leave_nothing_behind(
    hasty: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    def slowly(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(b"x" * 100)
        time.sleep(0.02)  # so that some leave before it, and some after
        peer.chunk(b"x" * 100_000)
        time.sleep(0.02)
        peer.end_stream()

    upstream.scripts["/vanish"] = slowly
    data = post_bytes("/vanish", body=b"x" * 1000)
    for number in range(120):
        sock = hasty.connect()
        if number % 2:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        with suppress(ConnectionError):
            if number % 20:
                sock.sendall(data[: len(data) * (number % 20) // 15])
            if number % 3 == 1:
                sock.shutdown(socket.SHUT_WR)
            if number % 20 > 15:
                time.sleep(0.01 * (number % 5))
        sock.close()
    until(lambda: gauge(hasty, "hearth_proxy_upstream_in_flight") == 0, "their end")
    until(lambda: gauge(hasty, "hearth_proxy_in_flight") == 0, "their end")
    assert requests.get(hasty.url + "/x", headers=bearer(), timeout=DEADLINE_S).ok


def test_log_holds_no_failure(hasty: ProxyProcess) -> None:
    for sign in ("Traceback", "never retrieved", "Exception"):
        assert sign not in hasty.log()
