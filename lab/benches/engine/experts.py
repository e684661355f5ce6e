"""Compares a mixture of experts with llama.cpp, from the same GGUF file: `make bench-experts`.

The model has a few of the layers of Qwen3-30B-A3B, a vocabulary cut in proportion, and random
weights, so its router sends tokens to all experts alike. Both servers are driven over HTTP by one
client. Tokens/s are all new tokens over the time from the first request to the last token, prefill
included. llama.cpp is a package compiled by others; the better of two thread counts counts. Nothing
else may use the cores.

Memory is each server's own and what it maps of the file. The model's cost is Hearth's memory beyond
that with the embedded model, whose weights take a few megabytes: weights, which should take no more
than the file, and the KV cache.

The speed of one user is bounded by the memory's bandwidth for the weights it reads. The bandwidth
is measured in turn with the servers, as in `make bench-step`.
"""

import argparse
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarking.machine import describe_machine
from inference_api.kernels.packing import FLOAT_BITS, packed_bytes
from inference_api.loading.checkpoint import describe
from inference_api.loading.config import ModelConfig
from inference_api.loading.hardware import physical_cores
from inference_api.loading.layout import is_exact, linear_weights, parameter_shape
from inference_api.loading.memory import Footprint
from inference_api.loading.options import EngineOptions
from inference_api.loading.settling import settle
from inference_api.settings import EMBEDDED_MODEL
from lab.benches.engine.step import FORMS, STREAM_BYTES, Stream
from lab.benches.serve.peers import GGUF_TYPES, Load
from lab.kit.completions import Request, complete
from lab.kit.servers import served
from lab.models.random_model import Shape, make_random_model
from lab.peers.install import PREBUILT_LLAMA, NotInstalled, install
from lab.peers.llama_server import prebuilt_llama_server
from lab.peers.models import MODELS, gguf_model

LAYERS, ALL_LAYERS, ALL_VOCABULARY = 3, 48, 151_936
SHAPE = Shape(
    hidden=2048,
    ffn=768,
    layers=LAYERS,
    heads=32,
    kv_heads=4,
    vocab_size=ALL_VOCABULARY * LAYERS // ALL_LAYERS,
    head_dim=128,
    num_experts=128,
    experts_per_token=8,
)
ROUNDS = {1: 3, 8: 1, 32: 1}  # requests of each user, by the number of users
LOADS = {
    users: Load(f"{users} users", users, prompt_tokens=16, max_tokens=64, rounds=rounds)
    for users, rounds in ROUNDS.items()
}
CONTEXT_TOKENS = 128
START_TIMEOUT_S = 600.0
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    port: int
    processes: Sequence[psutil.Process]

    def seconds(self, load: Load, seed: int) -> float:
        """Returns the seconds of a load. A user sends its requests one after the other."""

        def one_user(prompts: Sequence[Sequence[int]]) -> int:
            requests = (Request(tuple(prompt), load.max_tokens) for prompt in prompts)
            return sum(complete(self.port, request).num_tokens for request in requests)

        prompts = load.prompts(seed)
        began_s = time.perf_counter()
        with ThreadPoolExecutor(load.users) as users:
            num_tokens = sum(users.map(one_user, prompts))
        assert num_tokens == load.counted_tokens, f"{self.name} wrote {num_tokens} tokens"
        return time.perf_counter() - began_s

    def memory_bytes(self) -> int:
        """Returns the memory of its processes. Shared memory counts once."""
        return sum(process.memory_full_info().pss for process in self.processes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a mixture of experts beside llama.cpp.")
    parser.add_argument("--quantizations", nargs="+", choices=GGUF_TYPES, default=["int8"])
    parser.add_argument("--users", nargs="+", type=int, choices=LOADS, default=list(LOADS))
    parser.add_argument("--times", type=int, default=3, help="alternations")
    arguments = parser.parse_args()
    print(describe_machine("torch", "gunicorn"))
    # SIGTERM ends the bench like Ctrl-C, so that its servers end, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        version = install(PREBUILT_LLAMA)
    except NotInstalled as error:
        version = None
        print(f"llama.cpp is left out, it does not install: {error}", flush=True)
    for quantization in arguments.quantizations:
        _measure(quantization, version, arguments)


def _measure(quantization: str, version: str | None, arguments: argparse.Namespace) -> None:
    file = _file(GGUF_TYPES[quantization])
    file_mib = file.stat().st_size / MIB
    print(f"{file.name}: {file_mib:.0f} MiB; llama.cpp {version}; median tokens/s and all runs")
    with TemporaryDirectory() as logs, ExitStack() as stack:
        with _hearth(EMBEDDED_MODEL, quantization, Path(logs) / "embedded") as embedded:
            base_mib = embedded.memory_bytes() / MIB
        servers = [stack.enter_context(_hearth(file, quantization, Path(logs) / "log"))]
        for threads in _thread_counts() if version else []:
            try:
                servers.append(stack.enter_context(_llama(file, threads)))
            except AssertionError as error:
                reason = str(error).strip()[-300:]
                print(f"llama.cpp, {threads} threads, is left out, it does not start: {reason}\n")
        print("| server | users | tokens/s | runs | MiB |\n|---|---|---|---|---|")
        for users in arguments.users:
            load = LOADS[users]
            stream = Stream(physical_cores()) if users == 1 else None
            rates, stream_s = _rates(servers, load, arguments.times, stream)
            for server in servers:
                runs = " ".join(f"{rate:.1f}" for rate in rates[server.name])
                memory_mib = server.memory_bytes() / MIB
                print(
                    f"| {server.name} | {users} | {median(rates[server.name]):.1f} | {runs} | "
                    f"{memory_mib:.0f} |"
                )
            ours, *theirs = (median(rates[server.name]) for server in servers)
            if theirs:
                print(f"{users} users: {ours / max(theirs):.2f} x llama.cpp", flush=True)
            if stream_s:
                gb_per_s = STREAM_BYTES / median(stream_s) / 1e9
                answer_gb = answer_bytes(_config(file), quantization, load) / 1e9
                bound = load.max_tokens * gb_per_s / answer_gb
                print(
                    f"{users} user: an answer reads {answer_gb:.2f} GB of weights, memory delivers "
                    f"{gb_per_s:.1f} GB/s: {bound:.1f} tokens/s, of which Hearth has "
                    f"{ours / bound:.0%}",
                    flush=True,
                )
        foreseen = _footprint(file, quantization)
        print(f"Hearth with {EMBEDDED_MODEL.name}: {base_mib:.0f} MiB")
        print(f"more with this model: {servers[0].memory_bytes() / MIB - base_mib:.0f} MiB")
        print(f"its weights: {foreseen.weights_bytes / MIB:.1f} of the file's {file_mib:.1f} MiB")
        print(f"its KV cache: {foreseen.cache_bytes / MIB:.1f} MiB", flush=True)


def answer_bytes(config: ModelConfig, quantization: str, load: Load) -> float:
    """Returns the mean bytes of weights that one user's answer reads, if tokens choose all experts
    alike: the prompt reads them in one step, and each further token in a step of its own. In the
    last layer only the prompt's last token needs experts."""
    last = f"layers.{config.num_layers - 1}."

    def step_bytes(tokens: int) -> float:
        return fsum(
            packed_bytes(
                FLOAT_BITS["float32"] if is_exact(name) else FORMS[quantization],
                *parameter_shape(parts),
            )
            * _read_share(_num_stacked(config, name), 1 if name.startswith(last) else tokens)
            for name, parts in linear_weights(config).items()
        )

    return step_bytes(load.prompt_tokens) + (load.max_tokens - 1) * step_bytes(1)


def _num_stacked(config: ModelConfig, name: str) -> int:
    """Returns the number of matrices in a parameter: one for each expert, or 1."""
    found = re.fullmatch(r"layers\.(\d+)\.(up|down)\.weight", name)
    mixture = None if found is None else config.mixture_of(int(found[1]))
    return 1 if mixture is None else mixture.num_experts


def _read_share(num_stacked: int, tokens: int) -> float:
    """Returns the mean share of `num_stacked` matrices that `tokens` tokens need."""
    if num_stacked == 1:
        return 1.0
    return 1 - (1 - SHAPE.experts_per_token / num_stacked) ** tokens


def _rates(
    servers: Sequence[Server], load: Load, times: int, stream: Stream | None
) -> tuple[dict[str, list[float]], list[float]]:
    """Returns tokens/s of each server, measured in turn `times` times, and the seconds of each
    `stream` read. Warms servers up first."""
    rates: dict[str, list[float]] = {server.name: [] for server in servers}
    stream_s = []
    for server in servers:
        server.seconds(Load(load.name, load.users, load.prompt_tokens, 2), times)
    for turn in range(times):
        for server in servers:
            rates[server.name].append(load.counted_tokens / server.seconds(load, turn))
        if stream is not None:
            began_s = time.perf_counter()
            stream.read()
            stream_s.append(time.perf_counter() - began_s)
    return rates, stream_s


def _thread_counts() -> list[int]:
    """Returns two thread counts: all cores, and one less, which is left to HTTP and the client."""
    cores = physical_cores()
    return sorted({cores, max(cores - 1, 1)})


def _file(gguf_type: str) -> Path:
    folder = MODELS / f"random-30b-a3b-{LAYERS}-layers"
    if not (folder / "model.safetensors").exists():
        make_random_model(SHAPE, folder)
    return gguf_model(folder, gguf_type)


def _footprint(file: Path, quantization: str) -> Footprint:
    options = EngineOptions(
        device="cpu", max_rows=max(LOADS), max_seq_len=CONTEXT_TOKENS, quantization=quantization
    )
    return settle(_config(file), options, describe(str(file)).tensors).footprint()


def _config(file: Path) -> ModelConfig:
    config = describe(str(file)).config
    assert config is not None
    return config


@contextmanager
def _hearth(model: Path, quantization: str, log: Path) -> Iterator[Server]:
    settings: dict[str, Any] = {
        "MODEL": model,
        "MODEL_NAME": "model",
        "QUANTIZATION": quantization,
        "USER_ROWS": max(LOADS),
        "MAX_SEQ_LEN": CONTEXT_TOKENS,
    }
    with served(log, start_timeout_s=START_TIMEOUT_S, **settings) as api:
        main_process = psutil.Process(api.process.pid)
        yield Server("hearth", api.port, [main_process, *main_process.children(recursive=True)])
        api.stop()


@contextmanager
def _llama(file: Path, threads: int) -> Iterator[Server]:
    with prebuilt_llama_server(file, max(LOADS), CONTEXT_TOKENS, threads) as (port, process):
        yield Server(f"llama.cpp, {threads} threads", port, [process])
