"""`make bench-proxy`: what the proxy costs, beside no proxy, nginx and Envoy, in one run.

Four measurements against one scripted upstream: the delay that each token gets at several numbers
of streams, with the memory of a stream and the processor time of a token; the highest token rate
whose delays stay small; a small JSON route in a closed loop; and what 32 streams notice of
thousands of hostile sockets. nginx and Envoy relay unbuffered and check no token.
Time it alone: upstream, client and proxy already share the cores.
"""

import argparse
import asyncio
import resource
import secrets
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import jwt
import uvloop

from benchmarking.machine import describe_machine
from lab.benches.proxy.load import Crowd, StreamClient, closed_loop, open_streams, serve_upstream
from lab.benches.proxy.targets import Target, Targets
from lab.kit.servers import exit_on_sigterm

MAX_P99_MS = 10.0
LOOP_CLIENTS = 64
NUM_VICTIMS = 32
SLOW_READERS = 500
HALF_A_HEAD = b"G"


@dataclass(frozen=True, slots=True)
class Load:
    """Streams, and the tokens per second of each."""

    num_streams: int
    tokens_per_s: float
    seconds: float

    @property
    def num_tokens(self) -> int:
        return max(1, round(self.tokens_per_s * self.seconds))

    def __str__(self) -> str:
        return (
            f"{self.num_streams} streams at {self.tokens_per_s:g} tokens/s each, "
            f"{self.num_streams * self.tokens_per_s:.0f} in all, for {self.seconds:g} s"
        )


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays of tokens over all streams of one measurement, and what these cost."""

    p50_ms: float
    p99_ms: float
    num_lost: int
    num_out_of_order: int
    kib_per_stream: float
    cpu_us_per_token: float

    @classmethod
    def of(
        cls, clients: list[StreamClient], opened_ns: int, memory_bytes: int, cpu_s: float
    ) -> "Delays":
        """Delays only of what arrived once all streams were open."""
        delays_ms = [
            delay_ns / 1e6
            for client in clients
            for delay_ns, arrival_ns in zip(client.delays_ns, client.arrivals_ns, strict=True)
            if arrival_ns - delay_ns >= opened_ns
        ]
        p50_ms, p99_ms = p50_p99(delays_ms)
        return cls(
            p50_ms,
            p99_ms,
            sum(client.num_lost for client in clients),
            sum(client.num_out_of_order for client in clients),
            memory_bytes / len(clients) / 1024,
            cpu_s / max(1, len(delays_ms)) * 1e6,
        )


class Bench:
    """Measures and prints. `num_faults` counts the proxy's tokens that were lost or reordered."""

    def __init__(self, token: str) -> None:
        self._token = token
        self.num_faults = 0

    async def streams(self, target: Target, load: Load) -> Delays:
        request = self._request("POST", f"/inference/{load.num_tokens}/{load.tokens_per_s}")
        before_bytes, before_s = target.memory_bytes(), target.cpu_s()
        clients = await open_streams(target.port, request, load.num_streams, load.num_tokens)
        opened_s, opened_ns = target.cpu_s(), time.monotonic_ns()
        await asyncio.sleep(0.5 * load.seconds)
        during_bytes = target.memory_bytes()
        await asyncio.gather(*(client.ended for client in clients))
        cpu_s = target.cpu_s() - (opened_s if load.seconds > 1 else before_s)
        if load.seconds <= 1:
            opened_ns = 0  # too short a time for it to make a difference
        result = Delays.of(clients, opened_ns, during_bytes - before_bytes, cpu_s)
        if target.name.startswith("proxy"):
            self.num_faults += result.num_lost + result.num_out_of_order
        return result

    def delays(self, targets: list[Target], load: Load) -> None:
        """A table: what is added to what the upstream itself takes."""
        print(f"\n{load}")
        print(f"{'':9} {'p50 ms':>8} {'p99 ms':>8} {'lost':>6} {'disorder':>8}", end="")
        print(f" {'KiB/stream':>10} {'CPU us/token':>12}")
        for target in targets:
            result = uvloop.run(self.streams(target, load))
            cost = f" {result.kib_per_stream:10.1f} {result.cpu_us_per_token:12.1f}"
            print(
                f"{target.name:9} {result.p50_ms:8.2f} {result.p99_ms:8.2f} {result.num_lost:6d} "
                f"{result.num_out_of_order:8d}{cost if target.pid else ''}"
            )

    def highest_rate(self, targets: list[Target], load: Load) -> None:
        """Half as many tokens again at each step, for as long as their delays stay small."""
        print(
            f"\nHighest rate of {load.num_streams} streams with a p99 of at most {MAX_P99_MS:g} ms"
        )
        for target in targets:
            best, step = 0.0, load
            while True:
                result = uvloop.run(self.streams(target, step))
                if result.p99_ms > MAX_P99_MS or result.num_lost:
                    break
                best = step.num_streams * step.tokens_per_s
                step = replace(step, tokens_per_s=step.tokens_per_s * 1.5)
            print(f"{target.name:9} {best:8.0f} tokens/s (p99 {result.p99_ms:.1f} ms at the next)")

    def small_requests(self, targets: list[Target], seconds: float) -> None:
        """Requests per second, and per second of the target's own processor time."""
        print(f"\nGET of a small JSON, {LOOP_CLIENTS} clients in a closed loop for {seconds:g} s")
        print(f"{'':9} {'per s':>8} {'p50 ms':>8} {'p99 ms':>8} {'failed':>6} {'per CPU s':>10}")
        request = self._request("GET", "/v1/models")
        rates: dict[str, float] = {}
        for target in targets:
            before_s = target.cpu_s()
            results = uvloop.run(closed_loop(target.port, request, LOOP_CLIENTS, seconds))
            cpu_s = target.cpu_s() - before_s
            count = len(results.latencies_ms)
            rates[target.name] = count / seconds
            p50_ms, p99_ms = p50_p99(results.latencies_ms)
            per_cpu_s = f" {count / cpu_s:10.0f}" if cpu_s else ""
            print(
                f"{target.name:9} {count / seconds:8.0f} {p50_ms:8.2f} {p99_ms:8.2f} "
                f"{results.num_failed:6d}{per_cpu_s}"
            )
        for other in {"nginx", "envoy"} & rates.keys():
            for name in (name for name in rates if name.startswith("proxy")):
                print(f"ratio: {name} {rates[name] / rates[other]:.2f} of {other}'s requests")

    def hostile(self, target: Target, load: Load, num_sockets: int) -> None:
        """Gaps between tokens of 32 streams without and with a crowd, and `/health` meanwhile."""
        print(f"\n{num_sockets} silent sockets, as many with one byte, {SLOW_READERS} slow readers")
        for name, count in (("without", 0), ("with", num_sockets), ("without", 0)):
            gaps_ms, health_ms, mib = uvloop.run(self._crowded(target, load, count))
            p50_ms, p99_ms = p50_p99(gaps_ms)
            print(
                f"{name:9} gaps p50 {p50_ms:6.1f} p99 {p99_ms:6.1f} max {max(gaps_ms):6.1f} ms; "
                f"/health at most {health_ms:.1f} ms; {target.name} {mib:+.0f} MiB"
            )

    async def _crowded(
        self, target: Target, load: Load, num_sockets: int
    ) -> tuple[list[float], float, float]:
        request = self._request("POST", f"/inference/{load.num_tokens}/{load.tokens_per_s}")
        before_bytes = target.memory_bytes()
        victims = await open_streams(target.port, request, NUM_VICTIMS, load.num_tokens)
        health = asyncio.create_task(self._slowest_health(target, load.seconds))
        # A process of its own: this one must not be busy when a token comes.
        crowd = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lab.benches.proxy.bench", "--crowd", str(target.port),
            "--hostile", str(num_sockets), "--token", self._token,
        )  # fmt: skip
        await asyncio.gather(*(victim.ended for victim in victims))
        added_bytes = target.memory_bytes() - before_bytes
        crowd.terminate()
        await crowd.wait()
        self.num_faults += sum(victim.num_lost + victim.num_out_of_order for victim in victims)
        gaps_ms = [
            (after - before) / 1e6
            for victim in victims
            for before, after in zip(victim.arrivals_ns, victim.arrivals_ns[1:], strict=False)
        ]
        return gaps_ms, await health, added_bytes / 2**20

    async def _slowest_health(self, target: Target, seconds: float) -> float:
        """The longest of one new connection's `/health` after the other, in ms."""
        slowest_s, deadline_s = 0.0, time.monotonic() + 0.8 * seconds
        while (start_s := time.monotonic()) < deadline_s:
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            if not answer.startswith(b"HTTP/1.1 200 "):
                sys.exit(f"/health: {answer[:100]!r}")
            slowest_s = max(slowest_s, time.monotonic() - start_s)
            writer.close()
            await asyncio.sleep(0.1)
        return 1000 * slowest_s

    def _request(self, method: str, path: str) -> bytes:
        return http_request(method, path, self._token)


def http_request(method: str, path: str, token: str) -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Length: 0\r\n\r\n"
    ).encode()


def press(port: int, num_sockets: int, token: str) -> None:
    """Be the crowd, until somebody ends it."""
    crowd = Crowd(port)
    if num_sockets:
        crowd.add(SLOW_READERS, http_request("POST", "/inference/flood", token), 4096)
        crowd.add(num_sockets, b"")
        crowd.add(num_sockets, HALF_A_HEAD)
    signal.pause()


def p50_p99(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        sys.exit("hardly anything was answered")
    return median(values), quantiles(values, n=100)[98]


def run(targets: Targets, bench: Bench, arguments: argparse.Namespace) -> None:
    one, two = targets.proxy(1), targets.proxy(2)
    behind = [one, two, *filter(None, (targets.nginx(), targets.envoy()))]
    load = Load(arguments.streams, arguments.rate, arguments.seconds)
    uvloop.run(bench.streams(targets.direct, Load(2, 5, 0.4)))
    bench.delays([targets.direct, *behind], load)
    bench.delays([targets.direct, *behind], replace(load, num_streams=arguments.many))
    most = Load(arguments.most, arguments.most_rate, 2 * arguments.seconds)
    bench.delays([targets.direct, *filter(partial(_has_room, most), behind[1:])], most)
    bench.small_requests([targets.direct, *behind], arguments.seconds)
    if arguments.highest:
        bench.highest_rate(
            [targets.direct, *behind], Load(arguments.many, arguments.rate, arguments.seconds)
        )
    if arguments.hostile:
        bench.hostile(one, load, arguments.hostile)


def _has_room(load: Load, target: Target) -> bool:
    """Envoy is one process, with two sockets for each stream."""
    _, num_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    has_room = target.name != "envoy" or 2 * load.num_streams < num_files
    if not has_room:
        print(f"\nenvoy has no room for {load.num_streams} streams: {num_files} open files at most")
    return has_room


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the proxy beside others and none.")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--many", type=int, default=500)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens per second and stream")
    parser.add_argument("--most", type=int, default=10_000, help="streams of the last table")
    parser.add_argument("--most-rate", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--hostile", type=int, default=5_000, help="sockets of each kind")
    parser.add_argument("--highest", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--upstream", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--crowd", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--token", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if arguments.upstream is not None:
        uvloop.run(serve_upstream(arguments.upstream))
        return
    if arguments.crowd is not None:
        press(arguments.crowd, arguments.hostile, arguments.token)
        return
    exit_on_sigterm()
    print(describe_machine("gunicorn", "uvloop", "httptools"))
    secret = secrets.token_hex(32)
    bench = Bench(jwt.encode({"team_id": "bench", "token_id": "bench"}, secret))
    with TemporaryDirectory() as directory, ExitStack() as stack:
        run(Targets(stack, Path(directory), secret), bench, arguments)
    if bench.num_faults:
        sys.exit(f"the proxy lost or reordered {bench.num_faults} tokens")


if __name__ == "__main__":  # one of its other processes
    main()
