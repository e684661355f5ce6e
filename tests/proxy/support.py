"""What the proxy's tests stand on: upstreams that follow a script, and real proxy processes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import jwt
import psutil
import requests

from lab.kit.servers import TIMEOUT_S, Process, eventually, json_lines
from tests.forked import fork_server
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
SECRET = "a-secret-of-more-than-32-bytes-for-the-proxy-tests"
DEADLINE_S = TIMEOUT_S
# With the end of the line before it: a head whose last value ends in 0 is no last chunk.
LAST_CHUNK = b"\r\n0\r\n\r\n"


def make_token(secret: str = SECRET, **claims: object) -> str:
    """An operator's, as most tests are not about roles and scripts answer at any path."""
    ours = {"team_id": "team-a", "token_id": "token-1", "role": "operator"}
    return jwt.encode(ours | claims, secret)


def bearer(**claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {make_token(**claims)}"}


AUTH = f"Authorization: Bearer {make_token()}\r\n".encode()


def post_bytes(path: str, headers: bytes = AUTH, body: bytes = b"{}") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST %b HTTP/1.1\r\nHost: p\r\n" % path.encode() + headers + length + b"\r\n" + body


def receive(sock: socket.socket) -> bytes:
    piece = sock.recv(65536)
    assert piece, "the proxy closed the connection"
    return piece


def until(condition: Callable[[], object], what: str = "condition") -> None:
    """Wait for something another process does, with a deadline far beyond what it takes."""
    eventually(condition, what=what)


@dataclass
class Received:
    """One request as an upstream saw it, header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    raw_head: bytes = b""


@dataclass
class Peer:
    """The upstream's end of one connection, for scripts to write to."""

    sock: socket.socket
    request: Received
    upstream: "ScriptedUpstream"
    is_closed: bool = False

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def begin_stream(self, content_type: str = "text/plain") -> None:
        self.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"
            % content_type.encode()
        )

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self.send(b"0\r\n\r\n")

    def reply(self, body: bytes, status: str = "200 OK", *headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
        self.send("\r\n".join(lines).encode() + body)

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.close()

    def close(self) -> None:
        self.is_closed = True
        self.sock.close()

    def wait_until_closed_by_proxy(self) -> bool:
        """Blocks until the proxy closes its end; False if it does not."""
        self.sock.settimeout(DEADLINE_S)
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False


Script = Callable[[Peer], object]


def echo(peer: Peer) -> None:
    """Reply with what was received."""
    seen = peer.request
    content = {
        "method": seen.method,
        "target": seen.target,
        "headers": seen.headers,
        "body": seen.body.decode("latin-1"),
    }
    peer.reply(json.dumps(content).encode(), "200 OK", "Content-Type: application/json")


class ScriptedUpstream:
    """A server on a loopback port that answers each path by its script."""

    def __init__(self, default: Script = echo, port: int = 0) -> None:
        self.scripts: dict[str, Script] = {"/ready": lambda peer: peer.reply(b"{}")}
        self.default = default
        self.requests: list[Received] = []
        self.num_connections = 0
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=512)
        self.port = int(self._listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def seen(self, target: str) -> list[Received]:
        return [request for request in self.requests if request.target == target]

    def stop(self) -> None:
        """Close everything at once, as a killed process does."""
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        self._listener.close()
        for sock in list(self._open):
            with suppress(OSError):  # its own thread may just have closed it
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(sock)
            threading.Thread(target=self._converse, args=(sock,), daemon=True).start()

    def _converse(self, sock: socket.socket) -> None:
        try:
            stream = sock.makefile("rb")
            while (request := _read_request(stream)) is not None:
                if request.target != "/ready":
                    self.requests.append(request)
                peer = Peer(sock, request, self)
                path = request.target.partition("?")[0]
                self.scripts.get(path, self.default)(peer)
                if peer.is_closed:
                    return
        except (OSError, ValueError):
            pass
        finally:
            self._open.discard(sock)
            sock.close()


def _read_request(stream: BufferedReader) -> Received | None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        if not line:
            return None
        head += line
    lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = lines[0].split(" ")
    headers: dict[str, str] = {}
    for field in lines[1:]:
        name, _, value = field.partition(":")
        assert name.lower() not in headers, f"{name} was sent twice"
        headers[name.lower()] = value.strip()
    return Received(method, target, headers, _read_body(stream, headers), head)


def _read_body(stream: BufferedReader, headers: dict[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", ""):
        return stream.read(int(headers.get("content-length", 0)))
    body = b""
    while size := int(stream.readline(), 16):
        body += stream.read(size)
        stream.readline()
    stream.readline()
    return body


@dataclass
class ProxyProcess:
    """A real gunicorn with a real proxy in it."""

    process: Process
    port: int
    metrics_port: int
    audit_file: Path
    log_file: Path
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self.log_file.read_text()

    def audit(self) -> list[dict[str, object]]:
        return json_lines(self.audit_file)

    def audit_of(self, route: str) -> dict[str, object]:
        """The last line of a route, once it is there."""
        return self.audit_with(route=route)

    def audit_with(self, **values: object) -> dict[str, object]:
        """The last line that says this, once it is there."""
        found: list[dict[str, object]] = []

        def is_there() -> bool:
            found[:] = [line for line in self.audit() if values.items() <= line.items()]
            return bool(found)

        until(is_there, f"an audit line with {values}")
        return found[-1]

    def metric(self, name: str) -> str:
        return requests.get(f"http://127.0.0.1:{self.metrics_port}{name}", timeout=DEADLINE_S).text

    def raw(self, data: bytes, num_answers: int = 1) -> bytes:
        """Send bytes as they are; whatever comes back until the proxy closes, as it may announce,
        or has sent so many answers and falls silent."""
        with self.connect() as sock:
            sock.sendall(data)
            received = b""
            with suppress(TimeoutError, ConnectionError):
                while piece := sock.recv(65536):
                    received += piece
                    is_kept_open = b"\r\nConnection: close" not in received
                    if is_kept_open and _num_whole_answers(received) >= num_answers:
                        sock.settimeout(0.2)
            return received

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)

    def begin(self, path: str, body: str = '{"text": "hi"}', version: str = "1.1") -> socket.socket:
        """A POST on a socket of its own, sent and not yet answered."""
        sock = self.connect()
        sock.sendall(
            f"POST {path} HTTP/{version}\r\nHost: proxy\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {make_token()}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            "".encode()
        )
        return sock


def _num_whole_answers(received: bytes) -> int:
    count = 0
    while b"\r\n\r\n" in received:
        head, _, rest = received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        size = int(length[1]) if length else 0
        is_whole = len(rest) >= size
        if b"chunked" in head:
            _, end, rest = (b"\r\n" + rest).partition(LAST_CHUNK)
            is_whole = bool(end)
        if not is_whole:
            break
        count, received = count + 1, rest[size:]
    return count


def gauge(proxy: ProxyProcess, name: str) -> float:
    found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", proxy.metric("/metrics"), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def worker_of(proxy: ProxyProcess) -> psutil.Process:
    (worker,) = psutil.Process(proxy.process.pid).children()
    return worker


def slow_reader(proxy: ProxyProcess) -> socket.socket:
    """Its kernel takes little in that it does not read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    sock.settimeout(DEADLINE_S)
    sock.connect(("127.0.0.1", proxy.port))
    return sock


def _start(
    command: Sequence[str], arguments: Sequence[str], log: BinaryIO, env: Mapping[str, str]
) -> Process:
    if not command:
        gunicorn = ("gunicorn", "--config", "proxy/gunicorn.conf.py")
        return fork_server().start([*gunicorn, *arguments], log, env)
    return subprocess.Popen(
        [sys.executable, *command, *arguments], cwd=ROOT, env=env, stdout=log, stderr=log
    )


@contextmanager
def running_proxy(
    directory: Path,
    upstream: str,
    *arguments: str,
    command: tuple[str, ...] = (),
    port: int | None = None,
    metrics_port: int | None = None,
    **env: str,
) -> Iterator[ProxyProcess]:
    """A proxy process, of gunicorn unless there is a command; told to end when the block does."""
    free, free_for_metrics = free_ports(2)
    port, metrics_port = port or free, metrics_port or free_for_metrics
    settings = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "PROXY_PORT": str(port),
        "PROXY_METRICS_PORT": str(metrics_port),
        "UPSTREAM": upstream,
        "JWT_SECRET": SECRET,
        "AUDIT_FILE": str(directory / "audit.jsonl"),
        "HEALTH_INTERVAL": "0.2",
        "DRAIN_TIMEOUT": "5",
        "PYTHONWARNINGS": "error",
    }
    log_file = directory / "proxy.log"
    with log_file.open("wb") as log:
        process = _start(command, arguments, log, settings | env)
    scheme = "https" if "--certfile" in arguments else "http"
    proxy = ProxyProcess(process, port, metrics_port, directory / "audit.jsonl", log_file, scheme)
    try:
        _wait_until_up(proxy)
        yield proxy
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        _ending.append(proxy)


def wait_for_ending_proxies() -> None:
    """Every proxy must end by itself on SIGTERM. Looked at last, so that no test waits for it."""
    for proxy in _ending:
        try:
            proxy.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            proxy.process.kill()
            proxy.process.wait()
            raise AssertionError(f"a proxy did not end:\n{proxy.log()}") from None
        for sign in ("Traceback", "never retrieved"):
            assert sign not in proxy.log(), proxy.log()


def until_usable(proxy: ProxyProcess, num_upstreams: int) -> None:
    """Waits for the first checks of all upstreams: the proxy is ready with the first of them."""
    usable = re.compile(r"^hearth_proxy_upstream_usable\{.*\} 1\.0$", re.MULTILINE)
    until(lambda: len(usable.findall(proxy.metric("/metrics"))) == num_upstreams, "the checks")


_ending: list[ProxyProcess] = []


def _wait_until_up(proxy: ProxyProcess) -> None:
    def answers() -> bool:
        assert proxy.process.poll() is None, f"the proxy ended:\n{proxy.log()}"
        try:
            return proxy.metric("/health") == "OK"
        except requests.ConnectionError:
            return False

    until(answers, "the proxy")
