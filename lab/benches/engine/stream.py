"""Measures the cost of a streamed token from the decode step to the socket: `make bench-stream`.

The mock server decodes nothing, so all its CPU time is spent on the way out: publishing, waking the
request thread, detokenising, framing, writing. 32 clients read its streams at several paces. The
cost of a token is the server's CPU time over a window divided by the window's tokens.
"""

import json
import selectors
import socket
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarking.machine import describe_machine
from lab.kit.servers import MOCK_APP, ServedApi, exit_on_sigterm, post_bytes, served

STREAMS = 32
PROMPT = "x" * 2000  # the mock answers with this prompt, one token per character
WARM_UP_S = 1.0
WINDOW_S = 4.0
STEPS_PER_S = (10, 50, 200, 100_000)
READ_BYTES = 1 << 16
LAST_CHUNK = b"0\r\n\r\n"
ROUTES: dict[str, dict[str, object]] = {
    "/inference": {"text": PROMPT, "max_tokens": 2000},
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 2000, "stream": True},
}


def main() -> None:
    exit_on_sigterm()
    print(f"{describe_machine('gunicorn', 'flask')}\n")
    print("| route | steps/s asked | tokens/s | server CPU per token, us | of one core, % |")
    print("|---|---|---|---|---|")
    for path in ROUTES:
        for steps_per_s in STEPS_PER_S:
            tokens_per_s, cpu_s_per_s = measure(path, steps_per_s)
            cost_us = 1e6 * cpu_s_per_s / tokens_per_s
            print(
                f"| {path} | {steps_per_s} | {tokens_per_s:.0f} "
                f"| {cost_us:.1f} | {100 * cpu_s_per_s:.0f} |",
                flush=True,
            )


def measure(path: str, steps_per_s: int) -> tuple[float, float]:
    """Returns tokens per second of all streams, and the server's CPU seconds per second."""
    with TemporaryDirectory() as folder:
        settings = {"MOCK_TOKENS_PER_SECOND": steps_per_s, "MAX_SEQ_LEN": 2 * len(PROMPT)}
        with served(Path(folder) / "log", MOCK_APP, **settings) as api:
            return _measure(api, path)


def _measure(api: ServedApi, path: str) -> tuple[float, float]:
    request = post_bytes(path, json.dumps({"model": "hearth-tiny", **ROUTES[path]}).encode())
    worker = psutil.Process(api.process.pid).children()[0]
    clients = [api.send_raw(request) for _ in range(STREAMS)]
    try:
        _read_for(WARM_UP_S, clients, request)
        tokens, cpu_s, begun_s = _tokens(api), _cpu_s(worker), time.perf_counter()
        _read_for(WINDOW_S, clients, request)
        tokens, cpu_s = _tokens(api) - tokens, _cpu_s(worker) - cpu_s
        elapsed_s = time.perf_counter() - begun_s
    finally:
        for client in clients:
            client.close()
    return tokens / elapsed_s, cpu_s / elapsed_s


def _read_for(seconds: float, clients: list[socket.socket], request: bytes) -> None:
    """Reads answers, and sends the same request again after each."""
    until_s = time.perf_counter() + seconds
    with selectors.DefaultSelector() as readable:
        for client in clients:
            readable.register(client, selectors.EVENT_READ)
        while (rest_s := until_s - time.perf_counter()) > 0:
            for key, _ in readable.select(rest_s):
                assert isinstance(key.fileobj, socket.socket)
                received = key.fileobj.recv(READ_BYTES)
                assert received, "the server has hung up"
                if received.endswith(LAST_CHUNK):
                    key.fileobj.sendall(request)


def _tokens(api: ServedApi) -> int:
    return int(api.state()["totals"]["generated_tokens"])


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
