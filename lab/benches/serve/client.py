"""Checks that the client of `python -m benchmarking` is never the bottleneck: `make bench-client`.

Four checks run against a scripted server in a process of its own: known delays are measured within
2 ms; 32 streams of 50 tokens/s take little of a core; 500 streams at once all arrive whole; and a
server's stall of two seconds shows in the latency of every request that was due meanwhile. The exit
status is 1 if a check fails. Nothing else may use the cores.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from statistics import median
from threading import Event

import numpy as np

from benchmarking.load.generator import LoadJob, LoadResult, TimedExchange
from benchmarking.load.process import run_load
from benchmarking.load.schedule import due_times_s
from benchmarking.load.targets import Endpoint, Prompt
from benchmarking.machine import describe_machine
from common.fetch import answers_ok
from lab.kit.servers import ROOT, eventually, exit_on_sigterm, free_port

MODEL = "scripted"
MAX_DEVIATION_S = 0.002
MAX_CPU_SHARE = 0.05
TOLERANCE_S = 0.01
STOP_TIMEOUT_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each check")
    seconds = parser.parse_args().seconds
    exit_on_sigterm()
    print(describe_machine("httptools", "uvloop"))
    checks = (
        known_delays(ttft_s=0.1, itl_s=0.02, tokens=20, count=20),
        overhead(streams=32, tokens_per_s=50.0, seconds=seconds),
        many_streams(streams=500, tokens_per_s=5.0, seconds=seconds),
        stall(qps=20.0, seconds=seconds, stall_s=2.0),
    )
    sys.exit(0 if all(checks) else 1)


def known_delays(ttft_s: float, itl_s: float, tokens: int, count: int) -> bool:
    with scripted_server(ttft=ttft_s, itl=itl_s, tokens=tokens) as base:
        exchanges = run(_job(base, count, 60.0)).exchanges
    first_s = median(exchange.chunk_s[0] - exchange.sent_s for exchange in exchanges)
    spans_s = median(exchange.chunk_s[-1] - exchange.chunk_s[0] for exchange in exchanges)
    gap_s = spans_s / (tokens - 1)
    print(
        f"{count} requests one by one: TTFT {1e3 * first_s:.2f} ms (known: {1e3 * ttft_s:g}), "
        f"ITL {1e3 * gap_s:.2f} ms (known: {1e3 * itl_s:g}), medians"
    )
    return max(abs(first_s - ttft_s), abs(gap_s - itl_s)) < MAX_DEVIATION_S


def overhead(streams: int, tokens_per_s: float, seconds: float) -> bool:
    tokens = round(tokens_per_s * seconds)
    with scripted_server(itl=1 / tokens_per_s, tokens=tokens) as base:
        result = run(replace(_job(base, streams, seconds), concurrency=streams))
    client = result.overhead
    assert client is not None
    print(
        f"{streams} streams of {tokens_per_s:g} tokens/s: the client took {client.cpu_share:.1%} "
        f"of a core; its timers came {1e3 * client.lag_p50_s:.2f} ms late (p50), "
        f"{1e3 * client.lag_p99_s:.2f} (p99), {1e3 * client.lag_max_s:.2f} (max)"
    )
    return client.cpu_share < MAX_CPU_SHARE and _num_whole(result, tokens) == streams


def many_streams(streams: int, tokens_per_s: float, seconds: float) -> bool:
    tokens = round(tokens_per_s * seconds)
    with scripted_server(itl=1 / tokens_per_s, tokens=tokens) as base:
        result = run(replace(_job(base, streams, seconds), concurrency=streams))
    whole = _num_whole(result, tokens)
    print(f"{streams} streams at once of {tokens} tokens each: {whole} arrived whole")
    return whole == streams


def stall(qps: float, seconds: float, stall_s: float) -> bool:
    at_s, count = seconds / 2, round(qps * seconds)
    due_s = due_times_s(count, qps, "constant", Random(0))
    with scripted_server(tokens=1, stall_at=at_s, stall=stall_s) as base:
        result = run(replace(_job(base, count, seconds), due_s=tuple(due_s)))
    in_order = sorted(result.exchanges, key=lambda exchange: exchange.index)
    began_s = in_order[0].scheduled_s
    latencies_s = [_latency_s(exchange) for exchange in in_order]
    p50_s, p99_s = np.percentile(latencies_s, [50, 99]).tolist()
    hidden = sum(
        latency_s < at_s + stall_s - (exchange.scheduled_s - began_s) - TOLERANCE_S
        for exchange, latency_s in zip(in_order, latencies_s, strict=True)
        if at_s <= exchange.scheduled_s - began_s < at_s + stall_s
    )
    print(
        f"{qps:g} requests/s for {seconds:g} s, nothing answered for {stall_s:g} s: TTFT p50 "
        f"{1e3 * p50_s:.1f} ms, p99 {1e3 * p99_s:.1f} ms; {hidden} requests hide the stall"
    )
    return hidden == 0 and len(in_order) == count


def run(job: LoadJob) -> LoadResult:
    return run_load(job, lambda progress: None, Event())


@contextmanager
def scripted_server(**options: float) -> Iterator[str]:
    """Runs a scripted server in a process of its own. Yields the base URL of its routes."""
    port = free_port()
    given = [
        word for name, v in options.items() for word in (f"--{name.replace('_', '-')}", f"{v}")
    ]
    command = [
        sys.executable,
        "-m",
        "lab.kit.scripted_server",
        "--port",
        str(port),
        *given,
    ]
    process = subprocess.Popen(command, cwd=ROOT)
    base = f"http://127.0.0.1:{port}/v1"
    try:
        eventually(lambda: answers_ok(f"{base}/models"))
        yield base
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)


def _job(base: str, count: int, seconds: float) -> LoadJob:
    target = Endpoint("openai", base)
    request = target.request(MODEL, Prompt("p", "tell me more", 3), 1)
    limit_s = 10 * seconds + 60
    origin_s = time.monotonic()
    return LoadJob(target.address, (request,) * count, target.answer, origin_s, limit_s, limit_s)


def _num_whole(result: LoadResult, tokens: int) -> int:
    return sum(
        exchange.error is None and len(exchange.chunk_texts) == tokens
        for exchange in result.exchanges
    )


def _latency_s(exchange: TimedExchange) -> float:
    """Returns the latency, or 0, which fails the check, for a failed request."""
    return exchange.chunk_s[0] - exchange.scheduled_s if exchange.chunk_s else 0.0
