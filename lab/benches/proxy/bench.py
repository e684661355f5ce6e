"""Compares the proxy's costs with no proxy and with other gateways: `make bench-proxy`.

One scripted upstream answers all of them. For streams with a steady pace, the bench measures the
delay of each token, memory per stream and processor time per token. For small requests in a closed
loop, it measures requests per second, and per second of processor time. Options add more: very many
streams, the highest token rate with small delays, and the effect of thousands of hostile sockets on
32 streams. nginx and Envoy relay unbuffered and check no token. LiteLLM checks a token, parses
answers and writes them anew. Each of these has two processes or threads. Nothing else may use the
cores, which upstream, client and proxy already share.
"""

import argparse
import asyncio
import math
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import uvloop

from benchmarking.machine import describe_machine
from lab.benches.proxy.load import (
    ClosedLoop,
    Crowd,
    StreamClient,
    chat_request,
    closed_loop,
    http_request,
    open_streams,
    serve_upstream,
)
from lab.benches.proxy.targets import Target, Targets
from lab.kit.servers import exit_on_sigterm

OTHERS = ("nginx", "envoy", "litellm")
MAX_P99_MS = 10.0
LOOP_CLIENTS = 64
NUM_VICTIMS = 32
SLOW_READERS = 500
HALF_A_HEAD = b"G"
LATE_S = 10.0  # tokens later than this count as lost
WARM_S = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """A number of streams, and the tokens per second of each."""

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
    """Delays of tokens over all streams of one measurement, and their costs."""

    p50_ms: float
    p99_ms: float
    num_lost: int
    num_out_of_order: int
    kib_per_stream: float
    cpu_us_per_token: float

    @classmethod
    def of(
        cls, clients: list[StreamClient], begun_ns: int, memory_bytes: int, cpu_s: float
    ) -> "Delays":
        """Returns the delays of tokens sent after all streams had begun."""
        delays_ms = [
            delay_ns / 1e6
            for client in clients
            for delay_ns, arrival_ns in zip(client.delays_ns, client.arrivals_ns, strict=True)
            if arrival_ns - delay_ns >= begun_ns
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
    """Measures and prints. `num_faults` counts what the proxy lost, reordered or did not
    answer."""

    def __init__(self) -> None:
        self.num_faults = 0

    async def streams(self, target: Target, load: Load) -> Delays:
        request = chat_request(target.token, load.num_tokens, load.tokens_per_s)
        before_bytes = target.memory_bytes()
        clients = await open_streams(target.port, request, load.num_streams, load.num_tokens)
        await asyncio.wait([client.begun for client in clients], timeout=load.seconds + LATE_S)
        begun_s, begun_ns = target.cpu_s(), time.monotonic_ns()
        during_bytes = target.memory_bytes()
        await asyncio.wait([client.ended for client in clients], timeout=load.seconds + LATE_S)
        result = Delays.of(clients, begun_ns, during_bytes - before_bytes, target.cpu_s() - begun_s)
        for client in clients:
            client.transport.abort()
        if target.is_ours:
            self.num_faults += result.num_lost + result.num_out_of_order
        return result

    def delays(self, targets: Sequence[Target], load: Load) -> None:
        """Print a table of delays, and of the delays added to the upstream's own."""
        columns = ["p50 ms", "p99 ms", "p99 added", "lost", "out of order", "KiB/stream"]
        print(f"\n{load}\n\n{_row(['', *columns, 'CPU us/token'])}\n{_rule(8)}")
        direct: Delays | None = None
        for target in targets:
            result = uvloop.run(self.streams(target, load))
            direct = direct or result
            cells = [f"{result.p50_ms:.2f}", f"{result.p99_ms:.2f}"]
            cells += ["" if direct is result else f"{result.p99_ms - direct.p99_ms:.2f}"]
            cells += [str(result.num_lost), str(result.num_out_of_order)]
            costs = [f"{result.kib_per_stream:.1f}", f"{result.cpu_us_per_token:.1f}"]
            if result.cpu_us_per_token < 0:  # one of its processes has ended, with its time
                costs[1] = "restarted"
            print(_row([target.name, *cells, *(costs if target.pid else ["", ""])]), flush=True)

    def highest_rate(self, targets: Sequence[Target], load: Load) -> None:
        """Print the highest rate. Raises the rate by half at each step while delays stay small."""
        print(f"\nHighest rate of {load.num_streams} streams, p99 at most {MAX_P99_MS:g} ms\n")
        print(f"{_row(['', 'tokens/s', 'p99 ms at the next'])}\n{_rule(3)}")
        for target in targets:
            best, step = 0.0, load
            while True:
                result = uvloop.run(self.streams(target, step))
                if not result.p99_ms <= MAX_P99_MS or result.num_lost:
                    break
                best = step.num_streams * step.tokens_per_s
                step = replace(step, tokens_per_s=step.tokens_per_s * 1.5)
            print(_row([target.name, f"{best:.0f}", f"{result.p99_ms:.1f}"]), flush=True)

    def small_requests(
        self, what: str, targets: Sequence[Target], seconds: float, ask: Callable[[Target], bytes]
    ) -> None:
        """Print requests per second, and per second of the target's own processor time."""
        print(f"\n{what}, {LOOP_CLIENTS} clients in a closed loop for {seconds:g} s\n")
        columns = ["", "requests/s", "p50 ms", "p99 ms", "failed", "requests/CPU s"]
        print(f"{_row(columns)}\n{_rule(len(columns))}")
        for target in targets:
            before_s = target.cpu_s()
            results = self._loop(target, ask(target), seconds)
            cpu_s = target.cpu_s() - before_s
            count = len(results.latencies_ms)
            p50_ms, p99_ms = p50_p99(results.latencies_ms)
            cells = [f"{count / seconds:.0f}", f"{p50_ms:.2f}", f"{p99_ms:.2f}"]
            cells += [str(results.num_failed), f"{count / cpu_s:.0f}" if cpu_s else ""]
            print(_row([target.name, *cells]), flush=True)

    def warm(self, target: Target) -> None:
        """Make every process of a target load all that it needs."""
        self._loop(target, chat_request(target.token, 1), WARM_S)

    def _loop(self, target: Target, request: bytes, seconds: float) -> ClosedLoop:
        results = uvloop.run(closed_loop(target.port, request, LOOP_CLIENTS, seconds))
        if target.is_ours:
            self.num_faults += results.num_failed
        return results

    def hostile(self, target: Target, load: Load, num_sockets: int) -> None:
        """Print token gaps of 32 streams, and `/health` times, with and without a hostile crowd."""
        crowd = f"{num_sockets} silent sockets, as many with one byte, {SLOW_READERS} slow readers"
        print(f"\n{crowd}\n")
        gaps = ["gap p50 ms", "gap p99 ms", "longest gap ms"]
        columns = ["crowd", *gaps, "/health at most ms", "MiB more"]
        print(f"{_row(columns)}\n{_rule(len(columns))}")
        for name, count in (("without", 0), ("with", num_sockets), ("without", 0)):
            gaps_ms, health_ms, mib = uvloop.run(self._crowded(target, load, count))
            cells = [f"{each:.1f}" for each in (*p50_p99(gaps_ms), max(gaps_ms), health_ms)]
            print(_row([name, *cells, f"{mib:.0f}"]), flush=True)

    async def _crowded(
        self, target: Target, load: Load, num_sockets: int
    ) -> tuple[list[float], float, float]:
        request = chat_request(target.token, load.num_tokens, load.tokens_per_s)
        before_bytes = target.memory_bytes()
        victims = await open_streams(target.port, request, NUM_VICTIMS, load.num_tokens)
        health = asyncio.create_task(self._slowest_health(target, load.seconds))
        # The crowd is a process of its own, because this one must not be busy when a token comes.
        crowd = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lab.benches.proxy.bench", "--crowd", str(target.port),
            "--hostile", str(num_sockets), "--token", target.token,
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
        """Returns the longest time of `/health` in ms, over new connections one after the other."""
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


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(num_columns: int) -> str:
    return f"|---|{'---:|' * (num_columns - 1)}"


def press(port: int, num_sockets: int, token: str) -> None:
    """Runs the crowd until this process is ended."""
    crowd = Crowd(port)
    if num_sockets:
        crowd.add(SLOW_READERS, http_request("POST", "/inference/flood", token), 4096)
        crowd.add(num_sockets, b"")
        crowd.add(num_sockets, HALF_A_HEAD)
    signal.pause()


def p50_p99(values: list[float]) -> tuple[float, float]:
    """Returns p50 and p99; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan, math.nan
    return median(values), quantiles(values, n=100)[98]


def run(targets: Targets, bench: Bench, arguments: argparse.Namespace) -> None:
    one = targets.proxy(1)
    behind = [one, targets.proxy(2), *targets.others(arguments.beside)]
    every = [targets.direct, *behind]
    for target in every:
        bench.warm(target)
    load = Load(arguments.streams, arguments.rate, arguments.seconds)
    many = replace(load, num_streams=arguments.many)
    bench.delays(every, load)
    bench.delays(every, many)
    bench.small_requests(
        "A chat completion of two tokens",
        every,
        arguments.seconds,
        lambda target: chat_request(target.token, 2),
    )
    bench.small_requests(
        "GET of a small JSON",
        [target for target in every if target.relays_lists],
        arguments.seconds,
        lambda target: http_request("GET", "/v1/models", target.token),
    )
    if arguments.most:
        most = Load(arguments.most, arguments.most_rate, 2 * arguments.seconds)
        bench.delays([each for each in every if each is not one and _has_room(most, each)], most)
    if arguments.highest:
        bench.highest_rate(every, many)
    if arguments.hostile:
        bench.hostile(one, load, arguments.hostile)


def _has_room(load: Load, target: Target) -> bool:
    """Envoy is one process, with two sockets per stream; LiteLLM takes minutes for the load."""
    _, num_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return target.relays_lists and (target.name != "envoy" or 2 * load.num_streams < num_files)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the proxy beside others and none.")
    parser.add_argument("--beside", nargs="*", choices=OTHERS, default=OTHERS)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--many", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=5.0, help="tokens per second and stream")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--most", type=int, default=0, help="streams of a third table, say 10000")
    parser.add_argument("--most-rate", type=float, default=0.5)
    parser.add_argument("--hostile", type=int, default=0, help="sockets of each kind, say 5000")
    parser.add_argument("--highest", action="store_true", help="find the highest token rates")
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
    bench = Bench()
    with TemporaryDirectory() as directory, ExitStack() as stack:
        run(Targets(stack, Path(directory)), bench, arguments)
    if bench.num_faults:
        sys.exit(f"the proxy lost, reordered or refused {bench.num_faults} times")


if __name__ == "__main__":  # in the bench's other processes
    main()
