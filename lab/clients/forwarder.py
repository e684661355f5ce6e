"""A server between a client and Hearth: it sends each request on as it came, notes what was said,
and answers the client with the steered one.

The request as it came is what is tested: its answer is left after the first bytes. What is refused
there is refused to the client too, so that a run shows what a person would see.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

import requests

from lab.clients.steering import Body, Call, api_of, capped, ended, led_to, refusal, tools_of

TIMEOUT_S = 120.0
PROBE_TOKENS = 1
IGNORED_HEADER = "X-Hearth-Ignored"
HOP_HEADERS = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of the client's as it came, and how the server took it."""

    method: str
    path: str
    body: bytes
    status: int
    ignored: tuple[str, ...] = ()
    refused: str = ""
    has_way_out: bool = False  # of the refusal, by its code
    is_generating: bool = False


@dataclass(slots=True)
class Recorder:
    """What is planned for a run, and what has come of it. Any thread."""

    upstream: str
    calls: Sequence[Call]
    end: str
    exchanges: list[Exchange] = field(default_factory=list)
    num_calls: int = 0  # that the model has been led to
    _lock: Lock = field(default_factory=Lock)

    def note(self, exchange: Exchange) -> None:
        with self._lock:
            self.exchanges.append(exchange)

    def steered(self, api: str, body: Body) -> Body:
        """Returns the body that leads to the next call of the plan, or ends the run."""
        with self._lock:
            if tools_of(body) and self.num_calls < len(self.calls):
                self.num_calls += 1
                return led_to(api, body, self.calls[self.num_calls - 1])
        return ended(api, body, self.end)


@contextmanager
def forwarding(recorder: Recorder) -> Iterator[str]:
    """Serve on a free port of the loopback; yields the address."""
    handler = type("Handler", (_Handler,), {"recorder": recorder})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, name="forwarder")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    recorder: Recorder
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self._body()
        api, parsed = api_of(self.path), _object(body)
        if api is None or parsed is None:
            self._send_on(body)
            return
        is_streamed = bool(parsed.get("stream"))
        with self._ask(body if is_streamed else _bytes(capped(api, parsed, PROBE_TOKENS))) as first:
            self._note(first, body, is_generating=True)
            if first.status_code >= 400:
                self._relay(first)
                return
        steered = _bytes(self.recorder.steered(api, parsed))
        with self._ask(steered) as answer:
            if answer.status_code >= 400:  # what we asked for, not the client
                self._note(answer, steered)
            self._relay(answer)

    def do_GET(self) -> None:
        self._send_on(b"")

    def do_HEAD(self) -> None:
        self._send_on(b"")

    def log_message(self, format: str, *values: object) -> None:
        """Leave standard error to the table."""

    def _send_on(self, body: bytes) -> None:
        with self._ask(body) as answer:
            self._note(answer, body)
            self._relay(answer)

    def _ask(self, body: bytes) -> requests.Response:
        headers = {
            name: text for name, text in self.headers.items() if name.lower() not in HOP_HEADERS
        }
        return requests.request(
            self.command,
            self.recorder.upstream + self.path,
            headers=headers | {"Accept-Encoding": "identity"},
            data=body or None,
            stream=True,
            timeout=TIMEOUT_S,
        )

    def _note(self, answer: requests.Response, body: bytes, is_generating: bool = False) -> None:
        names = answer.headers.get(IGNORED_HEADER, "").split(",")
        ignored = tuple(stripped for name in names if (stripped := name.strip()))
        refused = refusal(answer.content) if answer.status_code >= 400 else ("", False)
        took = (answer.status_code, ignored, *refused, is_generating)
        self.recorder.note(Exchange(self.command, self.path, body, *took))

    def _relay(self, answer: requests.Response) -> None:
        self.send_response(answer.status_code)
        for name, text in answer.headers.items():
            if name.lower() not in HOP_HEADERS | {"date", "server"}:
                self.send_header(name, text)
        self.send_header("Connection", "close")
        self.end_headers()
        for piece in answer.iter_content(None):
            self.wfile.write(piece)
            self.wfile.flush()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)


def _object(body: bytes) -> Body | None:
    try:
        parsed = json.loads(body)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _bytes(body: Body) -> bytes:
    return json.dumps(body).encode()
