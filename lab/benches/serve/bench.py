"""Compares the served model in a closed loop with `transformers.generate`: `make bench-serve`.

For each model and number of users, in one run on one machine, it measures output tokens/s, time to
first token (TTFT), inter-token latency (ITL), the peer's tokens/s for the same prompts as one
static batch, the cost of a decode step outside the model, and the time of /health meanwhile.
Nothing else may use the cores.
"""

import argparse
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

from benchmarking.machine import describe_machine
from common.fetch import PROBE, fetch
from lab.kit.servers import ROOT, ServedApi, exit_on_sigterm, served
from lab.models.random_model import SHAPES, make_random_model

MODELS = ROOT / "var" / "models"
RESULTS = ROOT / "var" / "bench" / "serve.json"
USERS = (1, 8, 32)
HEALTH_PERIOD_S = 0.05
TOPICS = ("fox", "rabbit", "baker", "gardener", "owl", "bear", "fisherman", "teacher", "goat")


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, and the requests that every user sends, `rounds` in a row."""

    name: str
    folder: Path
    max_tokens: int
    rounds: int
    prompt_chars: int | None = None  # None: short questions, for a model that answers

    def prompt(self, user: int, turn: int) -> str:
        """Returns a prompt that differs for every request, so that no cache helps."""
        topic = TOPICS[(user + turn) % len(TOPICS)]
        text = f"Tell me a story about user {user}, round {turn} and a {topic}. "
        if self.prompt_chars is None:
            return text.strip()
        return (text * (self.prompt_chars // len(text) + 1))[: self.prompt_chars]


@dataclass(frozen=True, slots=True)
class Stream:
    """The times at which a request was sent and pieces of its answer came, in seconds."""

    sent_s: float
    pieces_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Result:
    model: str
    users: int
    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    generate_tokens_per_s: float
    loop_ms_per_step: float
    health_max_ms: float

    @property
    def ratio(self) -> float:
        return self.tokens_per_s / self.generate_tokens_per_s


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the server beside transformers.")
    parser.add_argument("--models", nargs="*", default=["hearth-tiny", *SHAPES])
    parser.add_argument("--users", nargs="*", type=int, default=USERS)
    parser.add_argument("--quantization", default="none", help="of the served weights")
    arguments = parser.parse_args()
    exit_on_sigterm()
    results = []
    for workload in workloads(arguments.models):
        with served_workload(workload, arguments.quantization, MAX_SEQ_LEN=512) as api:
            measured = [measure(api, workload, users) for users in arguments.users]
        for users, figures in zip(arguments.users, measured, strict=True):
            peer = generate_tokens_per_s(workload, users)
            name = workload.name
            if arguments.quantization != "none":
                name += f" {arguments.quantization}"
            results.append(Result(name, users, generate_tokens_per_s=peer, **figures))
            print(row(results[-1]), flush=True)
    report(results)


def model_arguments(description: str | None) -> argparse.Namespace:
    """Parses `models` and `quantization` for a bench of large models, and prints the machine."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--models", nargs="+", default=["110m", "1.1b"])
    parser.add_argument("--quantization", default="int8")
    arguments = parser.parse_args()
    exit_on_sigterm()
    print(f"{describe_machine('torch', 'gunicorn')}\n")
    return arguments


@contextmanager
def served_workload(
    workload: Workload, quantization: str, **settings: object
) -> Iterator[ServedApi]:
    """Yields the workload's model served by real gunicorn."""
    own: dict[str, Any] = {"MODEL": workload.folder, "QUANTIZATION": quantization}
    with (
        TemporaryDirectory() as folder,
        served(Path(folder) / "log", start_timeout_s=600, **own | settings) as api,
    ):
        yield api
        api.stop()


def workloads(names: list[str]) -> list[Workload]:
    known = [Workload("hearth-tiny", ROOT / "models" / "hearth-tiny", max_tokens=128, rounds=4)]
    for name, rounds in (("110m", 2), ("1.1b", 1)):
        folder = MODELS / f"random-{name}"
        if name in names and not (folder / "model.safetensors").exists():
            make_random_model(SHAPES[name], folder)
        known.append(Workload(name, folder, max_tokens=64, rounds=rounds, prompt_chars=128))
    return [workload for workload in known if workload.name in names]


def measure(api: ServedApi, workload: Workload, users: int) -> dict[str, Any]:
    """Runs a closed loop: every user sends its next request when its last answer has ended."""

    def one_user(user: int) -> list[Stream]:
        return [
            stream_once(api.port, workload.prompt(user, turn), workload.max_tokens)
            for turn in range(workload.rounds)
        ]

    stream_once(api.port, "warm up", max_tokens=4)
    before, started_s = api.state()["totals"], time.perf_counter()
    with ThreadPoolExecutor(users) as pool, polled_health(api) as health_s:
        streams = [stream for user in pool.map(one_user, range(users)) for stream in user]
    elapsed_s, after = time.perf_counter() - started_s, api.state()["totals"]

    ttft_ms = [1000 * (stream.pieces_s[0] - stream.sent_s) for stream in streams]
    itl_ms = [
        1000 * (later - earlier)
        for stream in streams
        for earlier, later in zip(stream.pieces_s, stream.pieces_s[1:], strict=False)
    ]
    steps = after["steps"] - before["steps"]
    return {
        "tokens_per_s": (after["generated_tokens"] - before["generated_tokens"]) / elapsed_s,
        "ttft_p50_ms": median(ttft_ms),
        "ttft_p99_ms": p99(ttft_ms),
        "itl_p50_ms": median(itl_ms),
        "itl_p99_ms": p99(itl_ms),
        "loop_ms_per_step": 1000 * (after["loop_s"] - before["loop_s"]) / steps,
        "health_max_ms": 1000 * max(health_s),
    }


@contextmanager
def polled_health(api: ServedApi) -> Iterator[list[float]]:
    """Polls /health during the block. The list fills with the seconds of each answer."""
    took_s: list[float] = []
    is_over = Event()

    def poll() -> None:
        while not took_s or not is_over.wait(HEALTH_PERIOD_S):
            asked_s = time.perf_counter()
            assert fetch(f"{api.url}/health", PROBE) == b"OK"
            took_s.append(time.perf_counter() - asked_s)

    poller = Thread(target=poll)
    poller.start()
    yield took_s
    is_over.set()
    poller.join()


def stream_once(port: int, text: str, max_tokens: int) -> Stream:
    """Sends one greedy request. Returns the time of each chunk as it was read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = json.dumps({"text": text, "max_tokens": max_tokens, "temperature": 0})
    sent_s = time.perf_counter()
    connection.request("POST", "/inference", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    pieces_s = []
    while response.read1(65536):
        pieces_s.append(time.perf_counter())
    connection.close()
    return Stream(sent_s, tuple(pieces_s))


def generate_tokens_per_s(workload: Workload, users: int) -> float:
    """Returns the peer's tokens/s, in a process of its own, for one static batch, greedy."""
    prompts = [workload.prompt(user, turn=0) for user in range(users)]
    arguments = json.dumps([str(workload.folder), prompts, workload.max_tokens])
    command = [sys.executable, "-m", "lab.peers.generate"]
    finished = subprocess.run(
        command, input=arguments, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return float(finished.stdout)


def p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


COLUMNS = (
    "| model | users | tokens/s | TTFT p50 / p99 ms | ITL p50 / p99 ms "
    "| generate tokens/s | ratio | loop ms/step | health max ms |\n" + "|---" * 9 + "|"
)


def row(result: Result) -> str:
    return (
        f"| {result.model} | {result.users} | {result.tokens_per_s:.1f} "
        f"| {result.ttft_p50_ms:.0f} / {result.ttft_p99_ms:.0f} "
        f"| {result.itl_p50_ms:.1f} / {result.itl_p99_ms:.1f} "
        f"| {result.generate_tokens_per_s:.1f} | {result.ratio:.2f} "
        f"| {result.loop_ms_per_step:.2f} | {result.health_max_ms:.0f} |"
    )


def report(results: list[Result]) -> None:
    machine = describe_machine("torch", "transformers", "gunicorn")
    print(f"\n{machine}\n\n{COLUMNS}")
    print("\n".join(row(result) for result in results))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    figures = {"machine": machine, "results": [asdict(result) for result in results]}
    RESULTS.write_text(json.dumps(figures, indent=1))
