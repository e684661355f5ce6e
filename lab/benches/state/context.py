"""Compares engines at long contexts, and crowds of users in little memory: `make bench-context`.

A prompt fills the context except for a short answer. All contestants start with a context of that
length, take turns with prompts of random tokens, and end; the next context is twice as long.
Prefill speed is the prompt's tokens over the time to the first token; decoding is the rest. Memory
is a contestant's resident memory after its turns; its growth since the shortest context gives the
memory of a token. A contestant that takes more than --patience times as long as the fastest gets no
longer contexts. Our weights and OpenVINO's are int8, llama.cpp's Q8_0. Nobody drafts, because
answers to random prompts are loops.

Then many users at once ask the first model for long answers, with a KV cache for all of them, and
with one for some. Nothing else may use the cores.
"""

import argparse
import re
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import eq
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from benchmarking.machine import describe_machine
from common.fetch import PROBE, fetch
from inference_api.loading.checkpoint import load_config
from inference_api.loading.hardware import physical_cores
from lab.benches.serve.bench import Workload, served_workload
from lab.benches.serve.peers import Contest, Load, installed
from lab.benches.state.memory import MIB, QUANTIZATION, cache_for
from lab.kit.completions import Request, Stream, complete
from lab.kit.servers import exit_on_sigterm
from lab.models.random_model import SHAPES
from lab.peers.contest import Contestant, Took, hearth, peer
from lab.peers.install import LLAMA_CPP, OPENVINO, Recipe
from lab.peers.models import gguf_model, model_folder, openvino_model, random_model

RANDOM_CONTEXT = 131_072  # context of models with random weights, in tokens
ANSWER_TOKENS = 32
NO_DRAFTS = {"SPECULATION": "off"}
CROWD_TOKENS = 256  # tokens of each prompt of the many users, and of each answer
PREEMPTIONS = re.compile(r"^vllm:num_preemptions(?:_total)?(?:{.*})? (\S+)$", re.MULTILINE)
COLUMNS = (
    "| context | contestant | prefill tokens/s | TTFT s | decode tokens/s | MiB | KiB a token |"
)
CROWD_COLUMNS = "| memory for | tokens/s | pauses | ITL p50 / p99 ms | same texts |"


@dataclass(frozen=True, slots=True)
class Figures:
    """A contestant at one context: its turns, and its memory after them."""

    name: str
    context: int
    turns: Sequence[Took]
    memory_bytes: int

    def row(self, shortest: "Figures") -> str:
        ttft_s = median(took.first_s for took in self.turns)
        decode_s = median(took.seconds - took.first_s for took in self.turns)
        more_tokens = self.context - shortest.context
        more_kib = (self.memory_bytes - shortest.memory_bytes) / 1024
        token_kib = f"{more_kib / more_tokens:.1f}" if more_tokens else ""
        return (
            f"| {self.context} | {self.name} | {(self.context - ANSWER_TOKENS) / ttft_s:.1f} "
            f"| {ttft_s:.2f} | {(ANSWER_TOKENS - 1) / decode_s:.2f} "
            f"| {self.memory_bytes / MIB:.0f} | {token_kib} |"
        )


def main() -> None:
    recipes = {recipe.name: recipe for recipe in (LLAMA_CPP, OPENVINO)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["smollm2", "110m", "1.1b"])
    parser.add_argument("--shortest", type=int, default=4096, help="context in tokens")
    parser.add_argument("--longest", type=int, default=16_384)
    parser.add_argument("--times", type=int, default=2, help="turns at each context")
    parser.add_argument("--patience", type=float, default=6.0, help="times the fastest")
    parser.add_argument("--peers", nargs="*", choices=recipes, default=list(recipes))
    parser.add_argument("--users", type=int, default=64, help="at once; 0: none")
    parser.add_argument("--room", type=int, default=16, help="users that little memory is for")
    arguments = parser.parse_args()
    exit_on_sigterm()
    print(f"{describe_machine('gunicorn')}\n")
    peers = list(installed(arguments.peers, left_out={}))
    models = {name: _model(name) for name in arguments.models}
    for name, model in models.items():
        longest = min(arguments.longest, load_config(model).max_positions)
        measured: list[Figures] = []
        for context in doubling(arguments.shortest, longest):
            slow = too_slow(measured, arguments.patience)
            measured += measure(model, context, arguments.times, peers, slow)
            print(f"\n{name}, up to {context}\n\n{table(measured)}\n", flush=True)
    if arguments.users:
        name, model = next(iter(models.items()))
        print(f"{name}, {arguments.users} users, {CROWD_TOKENS} tokens in and as many out\n")
        print(crowd_table(model, arguments.users, arguments.room))


def doubling(shortest: int, longest: int) -> list[int]:
    """Returns contexts from the shortest to the longest, each twice the previous one."""
    return [] if shortest > longest else [shortest, *doubling(2 * shortest, longest)]


def too_slow(measured: Sequence[Figures], patience: float) -> set[str]:
    """Returns the contestants that once took more than `patience` times as long as the fastest."""
    turn_s: dict[int, dict[str, float]] = {}
    for each in measured:
        seconds = median(took.seconds for took in each.turns)
        turn_s.setdefault(each.context, {})[each.name] = seconds
    return {
        name
        for by_name in turn_s.values()
        for name, seconds in by_name.items()
        if seconds > patience * min(by_name.values())
    }


def measure(
    model: Path, context: int, times: int, peers: Sequence[Recipe], left_out: Container[str]
) -> list[Figures]:
    load = Load("1 user", 1, context - ANSWER_TOKENS, ANSWER_TOKENS)
    with TemporaryDirectory() as logs, ExitStack() as stack:
        every = _contestants(model, context, peers, Path(logs))
        starts = (start for name, start in every if name not in left_out)
        contest = Contest(stack, starts, {})
        turns = contest.turns(load, times)
        return [
            Figures(each.name, context, turns[each.name], each.memory_bytes())
            for each in contest.running
        ]


def table(measured: Sequence[Figures]) -> str:
    shortest: dict[str, Figures] = {}
    rows = [each.row(shortest.setdefault(each.name, each)) for each in measured]
    return "\n".join([COLUMNS, "|---" * 7 + "|", *rows])


def crowd_table(model: Path, users: int, room: int) -> str:
    """Returns a table of the same requests with memory for all users, then for some."""
    load = Load(f"{users} users", users, CROWD_TOKENS, CROWD_TOKENS)
    lines, texts = [CROWD_COLUMNS, "|---" * 5 + "|"], []
    for num_users in (users, room):
        seconds, streams, pauses = _crowd(model, load, num_users)
        texts.append([stream.text for stream in streams])
        itls_ms = [1000 * (b - a) for stream in streams for a, b in pairwise(stream.events_s)]
        lines.append(
            f"| {num_users} | {load.counted_tokens / seconds:.1f} "
            f"| {'unknown' if pauses is None else pauses} "
            f"| {median(itls_ms):.0f} / {np.percentile(itls_ms, 99):.0f} "
            f"| {sum(map(eq, texts[0], texts[-1]))} of {users} |"
        )
    return "\n".join(lines)


def num_preemptions(metrics: str) -> int | None:
    """Returns how often requests were paused; None if the server does not report it."""
    counts = [int(float(number)) for number in PREEMPTIONS.findall(metrics)]
    return sum(counts) if counts else None


def _crowd(model: Path, load: Load, room: int) -> tuple[float, list[Stream], int | None]:
    """Sends all requests at once. Returns the seconds, the answers, and the number of pauses."""
    context = load.prompt_tokens + load.max_tokens
    size = {"USER_ROWS": load.users, "MAX_SEQ_LEN": context, **cache_for(model, room * context)}
    workload = Workload(model.name, model, load.max_tokens, load.rounds)
    requests = [Request(tuple(prompt), load.max_tokens) for [prompt] in load.prompts(seed=0)]
    with (
        served_workload(workload, QUANTIZATION, **size, **NO_DRAFTS) as api,
        ThreadPoolExecutor(load.users) as pool,
    ):
        began_s = perf_counter()
        streams = list(pool.map(partial(complete, api.port), requests))
        seconds = perf_counter() - began_s
        return seconds, streams, num_preemptions(fetch(f"{api.url}/metrics", PROBE).decode())


def _model(name: str) -> Path:
    """Returns the folder of a model of random weights, or of one that a package has."""
    return random_model(name, RANDOM_CONTEXT) if name in SHAPES else model_folder(name)


def _contestants(
    model: Path, context: int, peers: Sequence[Recipe], logs: Path
) -> Iterator[tuple[str, AbstractContextManager[Contestant]]]:
    """Yields contestants with their names in the figures."""
    threads = ("--threads", str(physical_cores()))
    for cache in ("float16", "int8", "int4"):
        settings = {"QUANTIZATION": QUANTIZATION, "KV_CACHE_DTYPE": cache, **NO_DRAFTS}
        name = f"{cache} cache"
        yield f"hearth {name}", hearth(name, model, 1, context, logs / cache, settings)
    for cache in ("F16", "Q8_0") if LLAMA_CPP in peers else ():
        options = ("--users", "1", "--context", str(context), "--flash", "1", "--cache", cache)
        arguments = partial(list[str], [str(gguf_model(model, "Q8_0")), *options, *threads])
        name = f"llama.cpp, {cache} cache"
        yield name, peer(name, LLAMA_CPP, arguments, logs / cache)
    if OPENVINO in peers:
        exported = partial(openvino_model, model, QUANTIZATION)
        start = peer("OpenVINO", OPENVINO, lambda: [str(exported()), *threads], logs / "openvino")
        yield "OpenVINO", start
