"""Answers as servers of others send them, over real connections: what becomes of each."""

import asyncio
import gzip
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from threading import Thread
from typing import Any

import pytest

from benchmarking.load import client, events
from benchmarking.load.client import retry_after_s
from benchmarking.load.generator import LoadJob, TimedExchange, apply_load
from benchmarking.load.targets import Endpoint, Prompt
from benchmarking.load.usage import server_usage

Respond = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

TEXT = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
END = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


def choice(**fields: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [fields]}).encode() + b"\n\n"


def said(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


# Of bodies with status 200: the code and a part of the message of the failure, if it is one.
DIALECTS: dict[str, tuple[bytes, str | None, str]] = {
    "choices: [] first": (said(choices=[], prompt_filter_results=[]) + TEXT + END, None, ""),
    "no choices": (said(id="x") + TEXT + END, None, ""),
    "null choices": (said(choices=None) + TEXT + END, None, ""),
    "no delta": (choice(index=0) + TEXT + END, None, ""),
    "null delta": (choice(delta=None) + TEXT + END, None, ""),
    "empty data": (b"data:\n\ndata: \n\n" + TEXT + END, None, ""),
    "comment": (b": ping\n\n" + TEXT + END, None, ""),
    "named ping": (b"event: ping\ndata: pong\n\n" + TEXT + END, None, ""),
    "typed ping": (said(type="ping") + TEXT + END, None, ""),
    "usage alone": (TEXT + END + said(usage={"completion_tokens": 1}), None, ""),
    "usage of another type": (TEXT + said(usage=3) + END, None, ""),
    "parts": (choice(delta={"content": [{"type": "text", "text": "a"}]}) + END, None, ""),
    "parts of a thought": (
        choice(delta={"content": [{"type": "thinking", "thinking": [{"text": "a"}]}]}) + END,
        None,
        "",
    ),
    "several lines": (
        b'data: {"choices":\ndata: [{"delta": {"content": "a"}}]}\n\n' + END,
        None,
        "",
    ),
    "carriage returns": ((TEXT + END).replace(b"\n", b"\r"), None, ""),
    "no last empty line": ((TEXT + END).rstrip(b"\n"), None, ""),
    "invalid UTF-8": (TEXT.replace(b'"a"', b'"a\xff"') + END, None, ""),
    "half a surrogate pair": (TEXT.replace(b'"a"', b'"\\ud83d"') + END, None, ""),
    "no token": (END, "empty", "no text came; finish reason stop"),
    "nothing": (b"", "protocol", "without a finish reason or [DONE]"),
    "only [DONE]": (b"data: [DONE]\n\n", "empty", "no text came"),
    "tool calls alone": (
        choice(delta={"tool_calls": [{"index": 0}]}) + choice(delta={}, finish_reason="tool_calls"),
        "empty",
        "finish reason tool_calls",
    ),
    "finish reason error": (TEXT + choice(delta={}, finish_reason="error"), "server", "error"),
    "finish reason of a type": (TEXT + choice(delta={}, finish_reason={"a": 1}), None, ""),
    "error object": (TEXT + said(object="error", message="too hot"), "server", "too hot"),
    "error event": (b'event: error\ndata: {"message": "too hot"}\n\n', "server", "too hot"),
    "error type": (said(type="error", error={"message": "too hot"}), "server", "too hot"),
    "escape sequence": (said(error="\x1b[31m too\nhot\ud83d"), "server", " [31m too hot "),
    "JSON without a stream": (b'{"object":"error","message":"too hot"}', "protocol", "too hot"),
    "a page": (b"<html>Sign in</html>", "protocol", "no stream of events: <html>Sign in"),
    "no JSON": (b"data: {\n\n", "protocol", "not an event of a chat completion: {"),
    "a number": (b"data: 3\n\n", "protocol", "not an event"),
    "a list": (b"data: []\n\n", "protocol", "not an event"),
    "choices of a type": (said(choices=1), "protocol", "not an event"),
    "content of a type": (choice(delta={"content": 3}), "protocol", "not an event"),
    "too deep": (b"data: " + b"[" * 100_000 + b"\n\n", "protocol", "not an event"),
    "too large a number": (b"data: " + b"9" * 5000 + b"\n\n", "protocol", "not an event"),
}


@contextmanager
def server(respond: Respond) -> Iterator[str]:
    """`respond` answers every connection once its request is there."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
            await respond(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone, or only tried whether somebody listens
        finally:
            writer.close()

    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = Thread(target=loop.run_forever, name="dialects")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listening.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def exchanged(base: str, count: int = 1, concurrency: int = 1) -> list[TimedExchange]:
    target = Endpoint("openai", base)
    requests = (target.request("m", Prompt("p", "text", 1), 1),) * count
    job = LoadJob(
        target.address, requests, target.answer, time.monotonic(), 60.0, 60.0, concurrency
    )
    result = asyncio.run(apply_load(job, asyncio.Event(), lambda progress: None))
    return sorted(result.exchanges, key=lambda exchange: exchange.index)


def answers(responses: Sequence[bytes]) -> Respond:
    """These, one after the other."""
    left = iter(responses)

    async def respond(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(next(left))
        await writer.drain()

    return respond


def test_every_dialect_is_read_and_every_failure_named() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
    with server(answers([head % len(body) + body for body, _, _ in DIALECTS.values()])) as base:
        exchanges = exchanged(base, len(DIALECTS))
    for (name, (_, code, message)), exchange in zip(DIALECTS.items(), exchanges, strict=True):
        failure = exchange.failure
        assert (failure.code if failure else None) == code, (name, failure)
        assert message in (failure.message if failure else ""), (name, failure)
        if code is None:
            (text,) = exchange.chunk_texts
            assert text in ("a", "a\ufffd", "?"), name


OK = b"HTTP/1.1 200 OK\r\n"
RESPONSES: dict[str, tuple[bytes, str | None, str]] = {
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\n" + TEXT + END, None, ""),
    "closed in a chunk": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n999\r\n" + TEXT + END,
        "connection",
        "in the middle of the answer",
    ),
    "closed between chunks": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(TEXT), TEXT),
        "connection",
        "in the middle of the answer",
    ),
    "gzip": (
        OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(TEXT + END),
        "protocol",
        "encoded as gzip",
    ),
    "endless line": (OK + b"\r\n" + b"x" * 200_000, "protocol", "an event of more than"),
    "endless event": (OK + b"\r\n" + b"data: x\n" * 20_000, "protocol", "an event of more than"),
    "endless answer": (OK + b"\r\n" + TEXT * 10_000, "protocol", "more than 300000 bytes"),
    "endless head": (OK + b"X: %b" % (b"x" * 200_000), "protocol", "more than 50000 bytes"),
    "another protocol": (
        b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "protocol",
        "not an HTTP answer",
    ),
}


def test_no_answer_takes_more_than_its_bounds_or_ends_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 50_000)
    monkeypatch.setattr(client, "MAX_HEAD_BYTES", 50_000)
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 300_000)
    with server(answers([response for response, _, _ in RESPONSES.values()])) as base:
        exchanges = exchanged(base, len(RESPONSES))
    for (name, (_, code, message)), exchange in zip(RESPONSES.items(), exchanges, strict=True):
        error = exchange.error
        assert (error.code if error else None) == code, (name, error)
        assert message in (error.message if error else ""), (name, error)


def test_no_redirect_is_followed() -> None:
    """The key would go with it."""
    followed: list[bytes] = []

    async def elsewhere(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        followed.append(b"")
        writer.write(OK + b"\r\n" + TEXT + END)

    with server(elsewhere) as other:
        moved = b"HTTP/1.1 307 -\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % other.encode()
        with server(answers([moved])) as base:
            (exchange,) = exchanged(base)
    assert exchange.error is not None
    assert (exchange.error.code, followed) == ("307", [])
    assert f"redirects to {other}" in exchange.error.message


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e400", "-1", "1" + "0" * 400, '"7"', "true", "[]"]
)
def test_a_count_that_no_answer_can_have_is_none(number: str) -> None:
    usage = json.loads(
        f'{{"completion_tokens": {number}, "time_to_first_token": {number}, "batch_size_used": '
        f'{number}, "acceptance_by_depth": [{number}], "completion_tokens_details": '
        f'{{"reasoning_tokens": {number}}}}}'
    )
    assert server_usage(usage) == server_usage({})


@dataclass
class Limited:
    """Serves `most` at once, and has the others come back. Nobody ends before so many are there."""

    most: int
    retry_after: bytes
    num_served: int = 0
    num_refused: int = 0

    async def respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.num_served == self.most:
            self.num_refused += 1
            writer.write(b"HTTP/1.1 429 -\r\n%bContent-Length: 4\r\n\r\nslow" % self.retry_after)
            return
        self.num_served += 1
        try:
            while self.num_refused == 0:
                await asyncio.sleep(0.01)
            writer.write(OK + b"\r\n" + TEXT + END)
            writer.write_eof()
            await reader.read()  # until the client has ended it, too
        finally:
            self.num_served -= 1


def test_who_is_told_to_wait_waits_and_is_sent_again() -> None:
    limited = Limited(3, b"Retry-After: 0\r\n")
    with server(limited.respond) as base:
        exchanges = exchanged(base, 12, concurrency=6)
    assert [exchange.failure for exchange in exchanges] == [None] * 12
    assert sum(exchange.num_waits for exchange in exchanges) == limited.num_refused > 0
    for exchange in exchanges:
        assert exchange.scheduled_s <= exchange.sent_s <= exchange.chunk_s[0] <= exchange.end_s
        assert exchange.sent_s - exchange.scheduled_s >= 0.1 * exchange.num_waits


@pytest.mark.parametrize("said", [b"", b"Retry-After: 99999\r\n", b"Retry-After: soon\r\n"])
def test_who_is_told_no_time_or_too_long_a_one_has_failed(said: bytes) -> None:
    limited = Limited(0, said)
    with server(limited.respond) as base:
        (exchange,) = exchanged(base)
    assert exchange.error is not None
    assert (exchange.error.code, exchange.error.message) == ("429", "slow")
    assert (exchange.num_waits, limited.num_refused) == (0, 1)


def test_a_run_that_is_stopped_waits_for_no_server() -> None:
    async def stopped(base: str) -> list[TimedExchange]:
        target, stop = Endpoint("openai", base), asyncio.Event()
        request = target.request("m", Prompt("p", "text", 1), 1)
        job = LoadJob(target.address, (request,), target.answer, time.monotonic(), 600.0, 600.0)
        running = asyncio.create_task(apply_load(job, stop, lambda progress: None))
        while limited.num_refused == 0:
            await asyncio.sleep(0.01)
        stop.set()
        return (await running).exchanges

    limited = Limited(0, b"Retry-After: 500\r\n")
    with server(limited.respond) as base:
        (exchange,) = asyncio.run(stopped(base))
    assert exchange.error is not None
    assert exchange.error.code == "interrupted"


@pytest.mark.parametrize(
    ("said", "expected_s"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        (formatdate(1_000_030, usegmt=True), 30.0),
        (formatdate(999_000, usegmt=True), 0.0),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("1e400", None),
        ("Fri, 99 Foo 9999999 00:00:00 GMT", None),
    ],
)
def test_a_time_to_wait_is_seconds_or_a_date(said: str, expected_s: float | None) -> None:
    assert retry_after_s(said, now_s=1_000_000.0) == expected_s
