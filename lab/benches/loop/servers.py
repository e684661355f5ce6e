"""Starts the servers that `bench-loop` and `bench-truth` check, and the optimizer they ask."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarking.analysis.predict import OptimizerApi
from benchmarking.analysis.service_curve import read_speed
from benchmarking.errors import TargetUnusable
from benchmarking.load.preflight import user_rows
from benchmarking.load.targets import Endpoint
from benchmarking.load.tokenizers import SERVER
from common.fetch import PROBE, FetchFailed, answers_ok, fetch
from inference_api.settings import EMBEDDED_MODEL
from lab.benches.loop.proof import Cuts
from lab.benches.table.models import TABLE_MODELS
from lab.kit.servers import (
    ROOT,
    TIMEOUT_S,
    environment,
    eventually,
    free_port,
    served,
)
from lab.kit.step_counts import CountedSpeed
from lab.peers.install import PREBUILT_LLAMA, NotInstalled, install
from lab.peers.llama_server import prebuilt_llama_server
from scripts.fetch_smollm2 import fetch_smollm2

LLAMA_PLACES, LLAMA_CONTEXT = 32, 512
LLAMA_CHUNK_TOKENS = 2048  # its n_batch


@dataclass(frozen=True, slots=True)
class Checked:
    """A server to check. `speed_url` is where it reports its step times, if it does.

    `chunk_tokens` is the most prompt tokens in a step, for a server that does not report it."""

    target: Endpoint
    model: str
    places: int
    tokenizer: str = SERVER
    speed_url: str | None = None
    chunk_tokens: int | None = None

    def cuts(self) -> Cuts:
        """Returns how it cuts prompts, by its report or `chunk_tokens`. Raises InvalidResults."""
        speed = self.speed()
        return (
            Cuts(self.chunk_tokens)
            if speed is None
            else Cuts(speed.chunk_tokens, speed.budget_tokens)
        )

    def speed(self) -> CountedSpeed | None:
        """Returns the server's report; None if it makes none. Raises InvalidResults."""
        if self.speed_url is None:
            return None
        return read_speed(f"{self.speed_url}#{self.model}", CountedSpeed)


@dataclass(frozen=True, slots=True)
class Kind:
    """A server that the bench starts, and requests that suit it. `settings` are for Hearth."""

    input_tokens: int
    output_tokens: int
    tokenizer: str = SERVER
    settings: Mapping[str, Any] = field(default_factory=dict)
    fetch: Callable[[], Path] | None = None  # returns MODEL; None means the embedded model


KINDS = {
    "tiny": Kind(64, 96, str(EMBEDDED_MODEL), {"DTYPE": "float32"}),
    "smollm2": Kind(96, 48, settings={"QUANTIZATION": "int8"}, fetch=fetch_smollm2),
    "llama": Kind(64, 96, str(EMBEDDED_MODEL)),
}


@contextmanager
def hearth(kind: Kind) -> Iterator[Checked]:
    """Yields our server, without reuse of prefixes: requests share only the system prompt."""
    settings = {**kind.settings, "PREFIX_REUSE": False}
    if kind.fetch is not None:
        settings["MODEL"] = kind.fetch()
    with TemporaryDirectory() as folder, served(Path(folder) / "log", **settings) as api:
        state = api.state()
        target = Endpoint("openai", f"{api.url}/v1")
        speed_url = f"{api.url}/speed"
        yield Checked(target, state["model"], state["user_rows"], kind.tokenizer, speed_url)
        api.stop()


@contextmanager
def llama() -> Iterator[Checked]:
    """Yields llama.cpp's own server with the embedded model's weights. Raises TargetUnusable."""
    try:
        print(f"llama.cpp: {install(PREBUILT_LLAMA)}", flush=True)
    except NotInstalled as error:
        raise TargetUnusable(f"llama.cpp's server does not install: {error}") from error
    file = TABLE_MODELS["hearth-tiny"].gguf()
    with prebuilt_llama_server(file, LLAMA_PLACES, LLAMA_CONTEXT) as (port, _):
        target = Endpoint("openai", f"http://127.0.0.1:{port}/v1")
        yield Checked(
            target, file.stem, LLAMA_PLACES, str(EMBEDDED_MODEL), chunk_tokens=LLAMA_CHUNK_TOKENS
        )


@contextmanager
def running(url: str, model: str | None, places: int | None, tokenizer: str) -> Iterator[Checked]:
    """Yields a running server that speaks OpenAI's API. Raises TargetUnusable."""
    target = Endpoint("openai", url)
    places = places or user_rows(target)
    if places is None:
        raise TargetUnusable(f"{url} does not say how many requests it serves at once: --places N")
    yield Checked(target, model or _first_model(target), places, tokenizer)


def _first_model(target: Endpoint) -> str:
    url = target.route("/models")
    try:
        listed = json.loads(fetch(url, PROBE))["data"]
        return str(listed[0]["id"])
    except (FetchFailed, ValueError, LookupError, TypeError) as error:
        raise TargetUnusable(f"{url} lists no model ({error}); name one by --model-name") from error


@contextmanager
def optimizer() -> Iterator[OptimizerApi]:
    """Yields a stateless optimizer in a process of its own."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "optimizer"],
        cwd=ROOT,
        env=environment(INFERNO_HOST="127.0.0.1", INFERNO_PORT=port),
        stdout=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, "the optimizer has ended"
        return answers_ok(f"{url}/getModels")

    try:
        eventually(answers)
        yield OptimizerApi(url)
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)
