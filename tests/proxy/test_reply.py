"""What an upstream's bytes become, without a socket."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from proxy.errors import StreamBroken, UpstreamBroken
from proxy.upstreams.reply import MAX_HEAD_BYTES, StaleConnection, UpstreamConnection

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
ANSWER = HEAD + b"ok"


class Wire:
    """Stands in for the transport; knows what was asked of it."""

    def __init__(self) -> None:
        self.is_closed = False
        self.is_reading = True
        self.sent = b""
        self.num_unsent_bytes = 0

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.num_unsent_bytes

    def write(self, data: bytes) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class Body:
    def __init__(self) -> None:
        self.data = b""
        self.is_whole = False

    def take(self, pieces: list[bytes], is_last: bool) -> None:
        self.data += b"".join(pieces)
        self.is_whole = self.is_whole or is_last


Talk = Callable[[UpstreamConnection, Wire, Body], Awaitable[None]]


def talk(script: Talk, method: str = "GET") -> None:
    async def run() -> None:
        connection, wire = UpstreamConnection(), Wire()
        connection.connection_made(wire)  # type: ignore[arg-type]
        connection.begin(method, b"request")
        await script(connection, wire, Body())

    asyncio.run(run())


def test_answer_in_single_bytes_is_the_same_as_in_one_piece() -> None:
    async def script(connection: UpstreamConnection, wire: Wire, body: Body) -> None:
        relaying: asyncio.Future[None] | None = None
        for at in range(len(ANSWER)):
            connection.data_received(ANSWER[at : at + 1])
            if relaying is None and connection.head is not None:
                head = await connection.answered()
                relaying = connection.relay(body.take)
        assert relaying is not None
        await relaying
        assert (head.status, head.length, body.data, body.is_whole) == (200, 2, b"ok", True)
        assert connection.can_be_reused

    talk(script)


def test_held_back_connection_reads_again_when_it_rests() -> None:
    """It may be held back by a slow client when the last of its answer has come already."""

    async def script(connection: UpstreamConnection, wire: Wire, body: Body) -> None:
        connection.data_received(ANSWER)
        await connection.answered()
        connection.set_reading(False)
        await connection.relay(body.take)
        assert connection.can_be_reused
        connection.rest()
        assert wire.is_reading

    talk(script)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("is_one_segment", [True, False])
def test_answer_that_nobody_asked_for_ends_the_connection_and_changes_nothing(
    method: str, is_one_segment: bool
) -> None:
    first = ANSWER if method == "GET" else HEAD
    second = b"HTTP/1.1 500 X\r\nContent-Length: 3\r\nX-Evil: 1\r\n\r\nbad"

    async def script(connection: UpstreamConnection, wire: Wire, body: Body) -> None:
        if is_one_segment:
            connection.data_received(first + second)
        else:
            connection.data_received(first)
            connection.data_received(second)
        head = await connection.answered()
        await connection.relay(body.take)
        assert (head.status, len(head.fields)) == (200, 1)
        assert body.data == (b"ok" if method == "GET" else b"")
        assert not connection.can_be_reused

    talk(script, method)


@pytest.mark.parametrize("is_sent", [True, False])
def test_answer_before_all_of_its_request_is_sent_is_the_last(is_sent: bool) -> None:
    """The rest is still on its way, and might be taken for the next request."""

    async def script(connection: UpstreamConnection, wire: Wire, body: Body) -> None:
        wire.num_unsent_bytes = 0 if is_sent else 1
        connection.data_received(ANSWER)
        await take_all(connection, body)
        assert connection.can_be_reused is is_sent

    talk(script)


def test_body_of_an_answer_that_may_have_none_is_the_last_that_is_read() -> None:
    async def script(connection: UpstreamConnection, wire: Wire, body: Body) -> None:
        connection.data_received(ANSWER[:-1])  # its end would come later
        await take_all(connection, body)
        assert body.data == b""
        assert not connection.can_be_reused

    talk(script, "HEAD")


@pytest.mark.parametrize("status", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
def test_interim_answers_are_passed_over(status: bytes) -> None:
    async def script(connection: UpstreamConnection, wire: Wire, body: Body) -> None:
        interim = b"HTTP/1.1 " + status + b"\r\nX-Interim: 1\r\n\r\n"
        connection.data_received(interim * 3 + ANSWER)
        head = await connection.answered()
        await connection.relay(body.take)
        assert (head.status, head.fields, body.data) == (200, [("Content-Length", "2")], b"ok")
        assert connection.can_be_reused

    talk(script)


@pytest.mark.parametrize("is_one_segment", [True, False])
@pytest.mark.parametrize(("size", "is_taken"), [(MAX_HEAD_BYTES - 2000, True), (70_000, False)])
def test_bound_of_a_head_does_not_depend_on_its_segments(
    is_one_segment: bool, size: int, is_taken: bool
) -> None:
    data = ANSWER.replace(b"\r\n\r\n", b"\r\nX: " + b"x" * (size // 2) + b"\r\nY: ", 1)
    data = data[:-2] + b"y" * (size // 2) + b"\r\n\r\nok"

    async def script(connection: UpstreamConnection, wire: Wire, body: Body) -> None:
        step = len(data) if is_one_segment else 1000
        for at in range(0, len(data), step):
            if not wire.is_closed:
                connection.data_received(data[at : at + step])
        if is_taken:
            assert (await connection.answered()).status == 200
        else:
            with pytest.raises(UpstreamBroken):
                await connection.answered()

    talk(script)


async def take_all(connection: UpstreamConnection, body: Body) -> None:
    await connection.answered()
    await connection.relay(body.take)


def test_upstream_that_closes_at_each_byte_breaks_visibly() -> None:
    for at in range(len(ANSWER)):

        async def script(
            connection: UpstreamConnection, wire: Wire, body: Body, at: int = at
        ) -> None:
            if at:
                connection.data_received(ANSWER[:at])
            connection.eof_received()
            connection.connection_lost(None)
            with pytest.raises((EOFError, StreamBroken)):
                await take_all(connection, body)
            assert not connection.can_be_reused

        talk(script)


def test_body_without_a_length_ends_with_its_connection() -> None:
    async def script(connection: UpstreamConnection, wire: Wire, body: Body) -> None:
        connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        connection.eof_received()
        connection.connection_lost(None)
        await connection.answered()
        await connection.relay(body.take)
        assert (body.data, body.is_whole) == (b"all of it", True)
        assert not connection.can_be_reused

    talk(script)


def test_kept_connection_that_ends_before_its_answer_is_stale() -> None:
    async def script(connection: UpstreamConnection, wire: Wire, body: Body) -> None:
        connection.data_received(ANSWER)
        await connection.relay(body.take)
        connection.rest()
        connection.begin("GET", b"again")
        connection.connection_lost(None)
        with pytest.raises(StaleConnection):
            await connection.answered()

    talk(script)


def test_connection_that_ends_before_it_is_used_says_so_at_once() -> None:
    async def run() -> None:
        connection, wire = UpstreamConnection(), Wire()
        connection.connection_made(wire)  # type: ignore[arg-type]
        connection.eof_received()
        wire.is_closed = True
        connection.connection_lost(None)
        connection.begin("GET", b"request")
        with pytest.raises(EOFError):
            await asyncio.wait_for(connection.answered(), 1)

    asyncio.run(run())
