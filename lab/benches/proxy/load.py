"""Both sides of a proxy in `bench-proxy`: a scripted upstream, and clients.

They speak OpenAI's chat completions, which gateways parse and write anew. Every token carries its
number and the time it was sent (all processes of a machine share a clock), so that tokens show
loss, order and delay when they arrive. The code is written to be cheap, on uvloop, because
upstream, client and proxy share the cores. Event loop only.
"""

import asyncio
import json
import random
import re
import socket
import time
from dataclasses import dataclass, field
from typing import cast

MODEL = "bench"
CHAT = "/v1/chat/completions"
TOKEN = re.compile(rb"T(\d{8}) (\d{19})")
CONTENT_LENGTH = b"\r\ncontent-length:"
LIST_BODY = b'{"object":"list","data":[{"id":"bench","object":"model"}]}'
ANSWER_BODY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"bench","choices":[{"index"'
    b':0,"message":{"role":"assistant","content":"Yes."},"finish_reason":"stop"}],"usage":'
    b'{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}'
)
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench",'
    b'"choices":[{"index":0,"delta":%b,"finish_reason":%b}]}\n\n'
)
TOKEN_EVENT = EVENT % (b'{"content":"T%08d %019d"}', b"null")
LAST_EVENTS = EVENT % (b"{}", b'"stop"') + b"data: [DONE]\n\n"
READY_BODY = b'{"status": "ready"}'


def whole(body: bytes) -> bytes:
    """Returns a complete answer with a small JSON body."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


LIST, ANSWER, READY = map(whole, (LIST_BODY, ANSWER_BODY, READY_BODY))
END_OF_STREAM = b"\r\n0\r\n\r\n"
# Connections being opened at a time; bounded, because a listening socket's backlog is.
MAX_CONNECTING = 200
CONNECT_TIMEOUT_S = 30.0
FLOOD_BUFFER_BYTES = 64 * 1024


def body_length(data: bytes, end: int) -> int | None:
    """Returns the content length in the head before `end`. A regular expression is too slow."""
    head = data[:end].lower()
    at = head.find(CONTENT_LENGTH)
    return int(head[at + len(CONTENT_LENGTH) : head.find(b"\r", at + 2)]) if at >= 0 else None


def http_request(method: str, path: str, token: str, body: bytes = b"") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def chat_request(token: str, num_tokens: int, per_s: float | None = None) -> bytes:
    """Returns a request for `num_tokens`, streamed with `per_s` per second, or in one answer."""
    message = {"role": "user", "content": str(per_s)}
    fields = {"model": MODEL, "messages": [message], "max_tokens": num_tokens}
    body = json.dumps(fields | ({} if per_s is None else {"stream": True})).encode()
    return http_request("POST", CHAT, token, body)


class UpstreamProtocol(asyncio.Protocol):
    """Answers `chat_request`, /inference/flood with endless data as fast as it is read, and all
    other paths with a small JSON."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it
        self.buffer = b""
        self.is_flooding = False

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n") + 4) >= 4:
            last = end + (body_length(self.buffer, end) or 0)
            if len(self.buffer) < last:
                return
            path, body = self.buffer.split(b" ", 2)[1].decode(), self.buffer[end:last]
            self.buffer = self.buffer[last:]
            self.answer(path, body)

    def resume_writing(self) -> None:
        if self.is_flooding:
            self.flood()

    def answer(self, path: str, body: bytes) -> None:
        fields = json.loads(body) if path == CHAT else {}
        if path == "/inference/flood":
            self.begin_stream("text/plain")
            # Without this, hundreds of floods would fill large buffers at the expense of others.
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, FLOOD_BUFFER_BYTES)
            self.is_flooding = True
            self.flood()
        elif fields.get("stream"):
            self.begin_stream("text/event-stream")
            every_s = 1 / float(fields["messages"][0]["content"])
            loop = asyncio.get_running_loop()
            start_s = loop.time() + random.random() * every_s
            loop.call_at(start_s, self.send, 0, fields["max_tokens"], start_s, every_s)
        else:
            self.transport.write(READY if path == "/ready" else ANSWER if fields else LIST)

    def begin_stream(self, content_type: str) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n"
        self.transport.write(f"{head}\r\n".encode())

    def send(self, number: int, num_tokens: int, start_s: float, every_s: float) -> None:
        if self.transport.is_closing():
            return
        if number == num_tokens:
            self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(LAST_EVENTS), LAST_EVENTS))
            return
        event = TOKEN_EVENT % (number, time.monotonic_ns())
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        at_s = start_s + (number + 1) * every_s
        loop = asyncio.get_running_loop()
        loop.call_at(at_s, self.send, number + 1, num_tokens, start_s, every_s)

    def flood(self) -> None:
        piece = b"10000\r\n" + bytes(65536) + b"\r\n"
        while not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.transport.write(piece)


async def serve_upstream(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(UpstreamProtocol, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


class StreamClient(asyncio.Protocol):
    """Reads one stream. `delays_ns` has the delays of tokens in order of arrival."""

    def __init__(self, request: bytes, num_tokens: int) -> None:
        self.request = request
        self.num_tokens = num_tokens
        self.begun = asyncio.get_running_loop().create_future()  # set at the first token
        self.ended = asyncio.get_running_loop().create_future()
        self.pending = b""
        self.delays_ns: list[int] = []
        self.arrivals_ns: list[int] = []
        self.num_out_of_order = 0
        self.is_whole = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        self.pending += data
        end = 0
        for match in TOKEN.finditer(self.pending):
            self.num_out_of_order += int(match[1]) != len(self.delays_ns)
            self.delays_ns.append(now_ns - int(match[2]))
            self.arrivals_ns.append(now_ns)
            end = match.end()
        if end and not self.begun.done():
            self.begun.set_result(None)
        self.is_whole = self.pending.endswith(END_OF_STREAM)
        self.pending = self.pending[end:]
        if self.is_whole:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)
        if not self.begun.done():
            self.begun.set_result(None)

    @property
    def num_lost(self) -> int:
        return self.num_tokens - len(self.delays_ns) + (not self.is_whole)


async def open_streams(
    port: int, request: bytes, count: int, num_tokens: int
) -> list[StreamClient]:
    """Opens `count` streams. Returns when all requests have been sent."""
    loop = asyncio.get_running_loop()
    places = asyncio.Semaphore(MAX_CONNECTING)
    clients = [StreamClient(request, num_tokens) for _ in range(count)]

    async def connect(client: StreamClient) -> None:
        async with places, asyncio.timeout(CONNECT_TIMEOUT_S):
            await loop.create_connection(lambda: client, "127.0.0.1", port)

    await asyncio.gather(*map(connect, clients))
    return clients


@dataclass(slots=True)
class ClosedLoop:
    """Results of clients that keep connections alive and ask again as soon as answered."""

    latencies_ms: list[float] = field(default_factory=list)
    num_failed: int = 0


class LoopClient(asyncio.Protocol):
    """One client of a closed loop, which stops at `deadline_s`."""

    def __init__(self, request: bytes, deadline_s: float, results: ClosedLoop) -> None:
        self.request, self.deadline_s, self.results = request, deadline_s, results
        self.ended = asyncio.get_running_loop().create_future()
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.ask()

    def ask(self) -> None:
        self.asked_s = time.monotonic()
        if self.asked_s >= self.deadline_s:
            self.transport.close()
            return
        self.received = b""
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if (end := self.received.find(b"\r\n\r\n") + 4) < 4:
            return
        length = body_length(self.received, end)
        if length is None or not self.received.startswith(b"HTTP/1.1 200 "):
            self.results.num_failed += 1
            self.transport.close()
        elif len(self.received) == end + length:
            self.results.latencies_ms.append((time.monotonic() - self.asked_s) * 1000)
            self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


async def closed_loop(port: int, request: bytes, num_clients: int, seconds: float) -> ClosedLoop:
    loop = asyncio.get_running_loop()
    results = ClosedLoop()
    deadline_s = time.monotonic() + seconds
    clients = [LoopClient(request, deadline_s, results) for _ in range(num_clients)]
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.gather(*(client.ended for client in clients))
    return results


class Crowd:
    """Hostile clients: plain sockets that send nothing or little, or do not read."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sockets: list[socket.socket] = []

    def add(self, count: int, said: bytes, receive_buffer_bytes: int = 0) -> None:
        """Add `count` sockets that send `said` once."""
        for _ in range(count):
            sock = socket.socket()
            if receive_buffer_bytes:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            sock.settimeout(CONNECT_TIMEOUT_S)
            sock.connect(("127.0.0.1", self._port))
            sock.sendall(said)
            self._sockets.append(sock)

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
