"""`make bench-proxy`: what the proxy costs, beside no proxy and beside nginx, in one run.

Three measurements against one scripted upstream: the delay of each token at a moderate number of
streams, a small JSON route in a closed loop, and many streams at once with the memory they take.
Every token carries its number and the time it was sent (one clock for all processes of a machine),
so loss, order and delay are read from what arrives. nginx relays unbuffered and checks no token.
Time it alone: upstream, client and proxy already share the cores.
"""

import argparse
import asyncio
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import jwt
import psutil

from benchmarking.machine import describe_machine
from benchmarking.serving import exit_on_sigterm

ROOT = Path(__file__).resolve().parent.parent
TOKEN = re.compile(rb"T(\d{8}) (\d{19})\n")
START_TIMEOUT_S = 30.0
JSON_BODY = b'{"object": "list", "data": [{"id": "hearth-tiny", "object": "model"}]}'

NGINX_CONFIG = """
daemon off; worker_processes 2; pid {directory}/nginx.pid; error_log {directory}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {directory}/a; proxy_temp_path {directory}/b;
  fastcgi_temp_path {directory}/c; uwsgi_temp_path {directory}/d; scgi_temp_path {directory}/e;
  keepalive_requests 1000000;
  upstream api {{ server 127.0.0.1:{upstream_port}; keepalive 1024; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      proxy_pass http://api; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked of each target."""

    num_streams: int
    num_many: int
    tokens_per_s: float
    seconds: float

    @property
    def num_tokens(self) -> int:
        return max(1, round(self.tokens_per_s * self.seconds))


@dataclass(frozen=True, slots=True)
class Target:
    """Something that answers on a port; `pid` of its process tree, for its memory."""

    name: str
    port: int
    pid: int | None = None

    def memory_bytes(self) -> int:
        """Proportional set size, so that pages shared by forked processes count once."""
        if self.pid is None:
            return 0
        parent = psutil.Process(self.pid)
        tree = [parent, *parent.children(recursive=True)]
        return sum(process.memory_full_info().pss for process in tree)


class UpstreamProtocol(asyncio.Protocol):
    """POST /stream/<tokens>/<tokens per s> streams; everything else is a small JSON answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while b"\r\n\r\n" in self.buffer:
            head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
            self.answer(head.split(b" ", 2)[1].decode())

    def answer(self, path: str) -> None:
        if not path.startswith("/stream/"):
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (len(JSON_BODY), JSON_BODY)
            )
            return
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        num_tokens, per_s = path.split("/")[2:4]
        loop = asyncio.get_running_loop()
        start_s = loop.time() + secrets.randbelow(1000) / 1000 / float(per_s)
        loop.call_at(start_s, self.send, 0, int(num_tokens), start_s, 1 / float(per_s))

    def send(self, number: int, num_tokens: int, start_s: float, every_s: float) -> None:
        if self.transport.is_closing():
            return
        if number == num_tokens:
            self.transport.write(b"0\r\n\r\n")
            return
        token = b"T%08d %019d\n" % (number, time.monotonic_ns())
        self.transport.write(b"%x\r\n%b\r\n" % (len(token), token))
        at_s = start_s + (number + 1) * every_s
        loop = asyncio.get_running_loop()
        loop.call_at(at_s, self.send, number + 1, num_tokens, start_s, every_s)


@dataclass(slots=True)
class StreamClient:
    """One stream's tokens, as they come. `delays_ns` in order of arrival."""

    num_tokens: int
    delays_ns: list[int] = field(default_factory=list)
    num_out_of_order: int = 0
    is_whole: bool = False

    async def run(self, port: int, request: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        pending = b""
        while not self.is_whole and (data := await reader.read(65536)):
            now_ns = time.monotonic_ns()
            pending += data
            end = 0
            for match in TOKEN.finditer(pending):
                self.num_out_of_order += int(match[1]) != len(self.delays_ns)
                self.delays_ns.append(now_ns - int(match[2]))
                end = match.end()
            self.is_whole = pending.endswith(b"\r\n0\r\n\r\n")
            pending = pending[end:]
        writer.close()

    @property
    def num_lost(self) -> int:
        return self.num_tokens - len(self.delays_ns) + (not self.is_whole)


@dataclass(frozen=True, slots=True)
class StreamResult:
    """What all streams of one measurement have in common."""

    delays_ms: list[float]
    num_lost: int
    num_out_of_order: int
    bytes_per_stream: float


async def measure_streams(target: Target, request: bytes, count: int, load: Load) -> StreamResult:
    before_bytes = target.memory_bytes()
    clients = [StreamClient(load.num_tokens) for _ in range(count)]
    running = [asyncio.create_task(client.run(target.port, request)) for client in clients]
    await asyncio.sleep(0.8 * load.seconds)
    during_bytes = target.memory_bytes()
    await asyncio.gather(*running)
    return StreamResult(
        [delay / 1e6 for client in clients for delay in client.delays_ns],
        sum(client.num_lost for client in clients),
        sum(client.num_out_of_order for client in clients),
        (during_bytes - before_bytes) / count,
    )


async def measure_json(target: Target, request: bytes, load: Load) -> list[float]:
    """Latencies in ms of 16 kept-alive clients, each asking again as soon as it is answered."""
    latencies_ms: list[float] = []
    deadline_s = time.monotonic() + load.seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        while (start_s := time.monotonic()) < deadline_s:
            writer.write(request)
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(JSON_BODY))
            latencies_ms.append((time.monotonic() - start_s) * 1000)
        writer.close()

    await asyncio.gather(*(client() for _ in range(16)))
    return latencies_ms


def http_request(method: str, path: str, token: str) -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Length: 0\r\n\r\n"
    ).encode()


def p50_p99(values: list[float]) -> tuple[float, float]:
    return median(values), quantiles(values, n=100)[98]


def run(targets: list[Target], token: str, load: Load) -> None:
    """Measure and print. Exits with 1 if the proxy lost or reordered a token."""
    stream = http_request("POST", f"/stream/{load.num_tokens}/{load.tokens_per_s}", token)
    listing = http_request("GET", "/v1/models", token)
    asyncio.run(measure_streams(targets[0], stream, 2, Load(2, 2, load.tokens_per_s, 0.2)))
    print(f"{'':8} {'delay per token, ms':>22} {'added p50':>10} {'lost':>6} {'disorder':>9}")
    faults = 0
    for count in (load.num_streams, load.num_many):
        print(f"{count} streams at {load.tokens_per_s:g} tokens/s each for {load.seconds:g} s")
        base_ms = 0.0
        for target in targets:
            result = asyncio.run(measure_streams(target, stream, count, load))
            p50_ms, p99_ms = p50_p99(result.delays_ms)
            base_ms = p50_ms if target.name == "direct" else base_ms
            memory = f" {result.bytes_per_stream / 1024:8.0f} KiB/stream" if target.pid else ""
            print(
                f"{target.name:8} p50 {p50_ms:6.2f} p99 {p99_ms:7.2f} {p50_ms - base_ms:+9.2f} "
                f"{result.num_lost:6d} {result.num_out_of_order:9d}{memory}"
            )
            if target.name == "proxy":
                faults += result.num_lost + result.num_out_of_order
    print(f"GET of a small JSON, 16 clients in a closed loop for {load.seconds:g} s")
    rates = {}
    for target in targets:
        latencies_ms = asyncio.run(measure_json(target, listing, load))
        rates[target.name] = len(latencies_ms) / load.seconds
        p50_ms, p99_ms = p50_p99(latencies_ms)
        print(
            f"{target.name:8} p50 {p50_ms:6.2f} p99 {p99_ms:7.2f} {rates[target.name]:9.0f} per s"
        )
    if "nginx" in rates:
        print(f"ratio: the proxy serves {rates['proxy'] / rates['nginx']:.2f} of nginx's requests")
    if faults:
        sys.exit(f"the proxy lost or reordered {faults} tokens")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(command: list[str], port: int, env: dict[str, str]) -> Iterator[int]:
    """A process that listens on `port`, stopped at the end of the block; yields its pid."""
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    deadline_s = time.monotonic() + START_TIMEOUT_S
    try:
        while socket.socket().connect_ex(("127.0.0.1", port)):
            if process.poll() is not None or time.monotonic() > deadline_s:
                sys.exit(f"{command[0]} did not come up")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_TIMEOUT_S)


def start_targets(stack: ExitStack, directory: Path, secret: str) -> list[Target]:
    upstream_port, proxy_port, nginx_port = free_port(), free_port(), free_port()
    env = {"PATH": os.defpath, "HOME": str(directory)}
    upstream = [sys.executable, "-m", "benchmarking.bench_proxy", "--upstream", str(upstream_port)]
    stack.enter_context(serving(upstream, upstream_port, env))
    proxy_env = env | {
        "JWT_SECRET": secret,
        "PROXY_PORT": str(proxy_port),
        "PROXY_METRICS_PORT": "0",
        "UPSTREAM": f"http://127.0.0.1:{upstream_port}",
        "AUDIT_FILE": str(directory / "audit.jsonl"),
    }
    proxy = [sys.executable, "-m", "gunicorn", "--config", "proxy/gunicorn.conf.py"]
    pid = stack.enter_context(serving(proxy, proxy_port, proxy_env))
    targets = [Target("direct", upstream_port), Target("proxy", proxy_port, pid)]
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin")
    if nginx is None:
        print("nginx is not installed (Debian: apt-get install nginx): measured without it")
        return targets
    config = directory / "nginx.conf"
    config.write_text(
        NGINX_CONFIG.format(directory=directory, upstream_port=upstream_port, port=nginx_port)
    )
    nginx_pid = stack.enter_context(serving([nginx, "-c", str(config)], nginx_port, env))
    return [*targets, Target("nginx", nginx_port, nginx_pid)]


async def serve_upstream(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(UpstreamProtocol, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the proxy beside nginx and no proxy.")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--many", type=int, default=500)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens per second and stream")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--upstream", type=int, metavar="PORT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.upstream is not None:
        asyncio.run(serve_upstream(arguments.upstream))
        return
    exit_on_sigterm()
    print(describe_machine("gunicorn"))
    secret = secrets.token_hex(32)
    token = jwt.encode({"team_id": "bench", "token_id": "bench", "role": "operator"}, secret)
    load = Load(arguments.streams, arguments.many, arguments.rate, arguments.seconds)
    with TemporaryDirectory() as directory, ExitStack() as stack:
        run(start_targets(stack, Path(directory), secret), token, load)


if __name__ == "__main__":
    main()
