"""What an upstream gets is exactly one request after the other, however clients cut their bytes.

The proxy is real but for its transports, so that a test decides what comes when: a client's bytes
go in at one end, and at the other is what an upstream would receive.
"""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import cast
from unittest import mock

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from proxy.app import ProxyApp
from proxy.clients import inbound
from proxy.proxy import create_proxy
from proxy.settings import Settings
from proxy.upstreams.reply import UpstreamConnection
from tests.proxy.support import AUTH, DEADLINE_S, SECRET, bearer, receive, running_proxy

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
TOO_LARGE = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\n{}"
NO_REQUEST = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}"
HEAD = b"POST /a HTTP/1.1\r\nHost: p\r\n" + AUTH
PLAIN = HEAD + b"Content-Length: 5\r\n\r\nplain"
STEPS = 40  # of the event loop, after which all has happened that can


class Wire:
    """A transport that keeps what is written."""

    def __init__(self, silent: socket.socket) -> None:
        self._silent = silent
        self.sent = b""
        self.is_closed = False

    def get_extra_info(self, name: str) -> object:
        return {"peername": ("192.0.2.1", 1), "socket": self._silent}.get(name)

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def set_write_buffer_limits(self, high: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def write_eof(self) -> None: ...


@dataclass
class Line:
    """A connection to the upstream, as it looks from there."""

    wire: Wire
    connection: UpstreamConnection
    num_answered: int = 0
    was_answered_early: bool = False

    def bodies(self) -> list[bytes]:
        """Of the requests that came. Raises ValueError if not all that came is whole requests."""
        found, rest = [], self.wire.sent
        while rest:
            body, rest = split_request(rest)
            found.append(body)
        return found

    def answer(self, answer: bytes) -> None:
        self.num_answered += 1
        try:
            self.bodies()
        except ValueError:
            self.was_answered_early = True
        self.connection.data_received(answer)


def split_request(data: bytes) -> tuple[bytes, bytes]:
    """The body of the first request, and what follows. Raises ValueError."""
    head, end, rest = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    if not end or not lines[0].endswith(b" http/1.1"):
        raise ValueError(data)
    framing = dict(line.split(b": ", 1) for line in lines[1:])
    if b"transfer-encoding" not in framing:
        length = int(framing.get(b"content-length", 0))
        if len(rest) < length:
            raise ValueError(data)
        return rest[:length], rest[length:]
    body, size = b"", -1
    while size:
        line, _, rest = rest.partition(b"\r\n")
        size = int(line, 16)
        if rest[size : size + 2] != b"\r\n":
            raise ValueError(data)
        body, rest = body + rest[:size], rest[size + 2 :]
    return body, rest


class Bench:
    """A proxy between clients and an upstream that are made of bytes."""

    def __init__(self, runner: asyncio.Runner, silent: socket.socket) -> None:
        self._runner, self._silent = runner, silent
        self.lines: list[Line] = []
        self._app = runner.run(self._make())
        (self._upstream,) = self._app._parts.balancer.upstreams
        self._upstream.pool.connect = self._connect  # type: ignore[method-assign]

    async def _make(self) -> ProxyApp:
        return create_proxy(Settings(upstream="http://u:1", jwt_secret=SecretStr(SECRET)))

    async def _connect(self) -> UpstreamConnection:
        line = Line(Wire(self._silent), UpstreamConnection())
        line.connection.connection_made(cast(asyncio.Transport, line.wire))
        self.lines.append(line)
        return line.connection

    def send(self, pieces: list[bytes], num_steps: int, num_early_bytes: int = 0) -> Wire:
        """Send pieces on a new connection, with steps between them. Returns what came back.

        So many bytes of the upstream's answer come after the first piece, the rest at the end.
        """
        wire = Wire(self._silent)
        self._runner.run(self._send(pieces, num_steps, num_early_bytes, wire))
        return wire

    async def _send(
        self, pieces: list[bytes], num_steps: int, num_early_bytes: int, wire: Wire
    ) -> None:
        client = self._app()
        client.connection_made(cast(asyncio.Transport, wire))
        rest = b""
        for piece in pieces:
            client.data_received(piece)
            await steps(num_steps)
            if num_early_bytes and not rest and self.is_asked:
                rest = TOO_LARGE[num_early_bytes:]
                self.lines[-1].answer(TOO_LARGE[:num_early_bytes])
        await steps(STEPS)
        if self.is_asked:
            self.lines[-1].answer(OK)
        elif rest and not self.lines[-1].wire.is_closed:
            self.lines[-1].connection.data_received(rest)
        await steps(STEPS)
        client.connection_lost(None)

    @property
    def is_asked(self) -> bool:
        return bool(self.lines) and self.lines[-1].wire.sent.count(b"POST ") > (
            self.lines[-1].num_answered
        )

    def forget(self) -> None:
        self.lines.clear()
        while (idle := self._runner.run(self._take_idle())) is not None:
            idle.abort()

    async def _take_idle(self) -> UpstreamConnection | None:
        return self._upstream.pool.take_idle()


async def steps(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    ours, theirs = socket.socketpair()
    with ours, theirs, asyncio.Runner() as runner:
        yield Bench(runner, ours)


@st.composite
def framed(draw: st.DrawFn, min_size: int = 0) -> tuple[bytes, bytes]:
    """A body, and a request that carries it."""
    body = draw(st.binary(min_size=min_size, max_size=40))
    expect = draw(st.sampled_from([b"", b"Expect: 100-continue\r\n"]))
    if draw(st.booleans()):
        return body, HEAD + expect + b"Content-Length: %d\r\n\r\n" % len(body) + body
    cuts = draw(st.sets(st.integers(0, len(body)), max_size=4))
    chunks = [body[start:end] for start, end in pairwise(sorted({0, len(body), *cuts}))]
    extension = draw(st.sampled_from([b"", b";name=value"]))
    trailer = draw(st.sampled_from([b"", b"X-Trailer: 1\r\n"]))
    sent = b"".join(b"%x%b\r\n%b\r\n" % (len(c), extension, c) for c in chunks if c)
    end = b"0" + extension + b"\r\n" + trailer + b"\r\n"
    return body, HEAD + expect + b"Transfer-Encoding: chunked\r\n\r\n" + sent + end


def cut(data: st.DataObject, request: bytes) -> list[bytes]:
    """Mostly behind the head, where the framing is."""
    end = len(request)
    spots = st.integers(request.index(b"\r\n\r\n"), end) | st.integers(0, end)
    places = data.draw(st.sets(spots, max_size=6))
    return [request[a:b] for a, b in pairwise(sorted({0, end, *places}))]


@given(st.data(), st.sampled_from([4, 256 * 1024]), st.sampled_from([0, 1, STEPS]))
def test_any_cut_of_any_body_is_one_request_and_leaves_nothing(
    bench: Bench, data: st.DataObject, inspected_bytes: int, num_steps: int
) -> None:
    body, request = data.draw(framed())
    bench.forget()
    with mock.patch.object(inbound, "INSPECTED_BYTES", inspected_bytes):
        first = bench.send(cut(data, request), num_steps)
        second = bench.send([PLAIN], 0)
    (line,) = bench.lines  # used again
    assert line.bodies() == [body, b"plain"]
    for wire in (first, second):
        assert wire.sent.count(b"HTTP/1.1 200 OK") == 1


@given(st.data(), st.integers(1, len(TOO_LARGE)))
def test_connection_whose_answer_came_before_its_request_was_whole_is_not_used_again(
    bench: Bench, data: st.DataObject, num_early_bytes: int
) -> None:
    _, request = data.draw(framed(min_size=2))
    place = data.draw(st.integers(request.index(b"\r\n\r\n") + 4, len(request)))
    bench.forget()
    with mock.patch.object(inbound, "INSPECTED_BYTES", 1):
        bench.send([request[:place], request[place:]], STEPS, num_early_bytes)
        second = bench.send([PLAIN], 0)
    assert bench.lines[0].wire.is_closed == (len(bench.lines) == 2)
    assert bench.lines[-1].bodies()[-1] == b"plain"
    assert second.sent.startswith(b"HTTP/1.1 200 OK")
    if bench.lines[0].was_answered_early:
        assert len(bench.lines) == 2


@dataclass
class StrictUpstream:
    """As Hearth's API, it answers 400 to what is no request; and it remembers that."""

    listener: socket.socket
    oddities: list[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                threading.Thread(target=self._converse, args=(sock,), daemon=True).start()

    def _converse(self, sock: socket.socket) -> None:
        received = b""
        with sock:
            while piece := sock.recv(65536):
                received += piece
                while received:
                    try:
                        _, received = split_request(received)
                    except ValueError:
                        if received.startswith((b"GET ", b"POST ")):
                            break  # its rest is still to come
                        self.oddities.append(received)
                        sock.sendall(NO_REQUEST)
                        return
                    sock.sendall(OK)


@pytest.fixture
def strict() -> Iterator[StrictUpstream]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        upstream = StrictUpstream(listener, [])
        threading.Thread(target=upstream.accept, daemon=True).start()
        yield upstream
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.slow
def test_empty_chunked_body_of_one_spoils_no_request_of_another(
    strict: StrictUpstream, tmp_path: Path
) -> None:
    empty = HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with running_proxy(tmp_path, strict.url) as proxy, proxy.connect() as sock:
        for _ in range(10):
            sock.sendall(empty)
            assert receive(sock).startswith(b"HTTP/1.1 200 OK")
            other = requests.post(proxy.url, headers=bearer(team_id="b"), timeout=DEADLINE_S)
            assert other.status_code == 200
    assert strict.oddities == []
