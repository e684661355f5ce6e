"""Contestants of `bench-peers`: our server over HTTP, and peers in processes of their own.

All of them stay loaded and sleep while another one runs. Every result includes the processor time
that the others took meanwhile.
"""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil

from inference_api.loading.hardware import physical_cores
from lab.kit.completions import Request, Stream, complete
from lab.kit.servers import ROOT, environment, served
from lab.peers.install import GGUF_READERS, Recipe

START_TIMEOUT_S = 900.0
END_TIMEOUT_S = 60.0
MAX_REASON_CHARACTERS = 200
ERROR = re.compile(r"[\w.]+(Error|Exception): ")  # a traceback's end; libraries may log after it

Prompts = Sequence[Sequence[Sequence[int]]]  # [user][request][token]


class Took(NamedTuple):
    """The duration of a load, and the time until its first token."""

    seconds: float
    first_s: float


Run = Callable[[Prompts, int], Took]  # takes prompts, and the number of new tokens for each


class PeerEnded(Exception):
    """The contestant `name` did not start, or it ended. The message says why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


@dataclass(frozen=True, slots=True)
class Contestant:
    """One program with one model in one form. `run` runs a closed loop."""

    name: str
    about: str
    run: Run
    process: psutil.Process

    def cpu_s(self) -> float:
        """Returns the processor time that the process and its children have taken so far."""
        return sum(
            times.user + times.system for times in (each.cpu_times() for each in self._members())
        )

    def memory_bytes(self) -> int:
        """Returns the resident memory of the process and its children."""
        return sum(each.memory_info().rss for each in self._members())

    def _members(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]


@contextmanager
def hearth(
    name: str,
    folder: Path,
    users: int,
    context: int,
    log_path: Path,
    settings: Mapping[str, object],
) -> Iterator[Contestant]:
    """Yields our real server. Requests are OpenAI completions with token ids as prompts."""
    own: dict[str, Any] = {
        "MODEL": folder,
        "MODEL_NAME": "model",
        "USER_ROWS": users,
        "MAX_SEQ_LEN": context,
    }
    with served(log_path, start_timeout_s=START_TIMEOUT_S, **own | dict(settings)) as api:

        def run(prompts: Prompts, max_tokens: int) -> Took:
            def one_user(requests: Sequence[Sequence[int]]) -> list[Stream]:
                return [
                    complete(api.port, Request(tuple(prompt), max_tokens)) for prompt in requests
                ]

            began_s = time.perf_counter()
            with ThreadPoolExecutor(len(prompts)) as pool:
                streams = [stream for user in pool.map(one_user, prompts) for stream in user]
            seconds = time.perf_counter() - began_s
            _check_tokens(sum(stream.num_tokens for stream in streams), prompts, max_tokens)
            return Took(seconds, min(stream.ttft_s for stream in streams))

        about = " ".join(f"{key}={value}" for key, value in settings.items())
        yield Contestant(f"hearth {name}", about, run, psutil.Process(api.process.pid))
        api.stop()


@contextmanager
def peer(
    name: str, recipe: Recipe, arguments: Callable[[], Sequence[str]], log_path: Path
) -> Iterator[Contestant]:
    """Yields a peer that runs `process`, without HTTP. `arguments` may have to make its model.
    Files that the peer leaves in its temporary folder, such as vLLM's sockets, are removed.

    Raises PeerEnded, as `run` does."""
    try:
        command = [str(recipe.python), "-m", recipe.check, *arguments()]
    except subprocess.CalledProcessError as error:
        raise PeerEnded(name, _reason(error.returncode, error.stderr.decode())) from None
    with (
        log_path.open("wb") as log,
        TemporaryDirectory(ignore_cleanup_errors=True) as temporary,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(**recipe.settings, TMPDIR=temporary),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def answer() -> dict[str, Any]:
            if line := stdout.readline():
                parsed: dict[str, Any] = json.loads(line)
                return parsed
            raise PeerEnded(name, _reason(_ended(process), log_path.read_text()))

        def run(prompts: Prompts, max_tokens: int) -> Took:
            load = json.dumps({"prompts": prompts, "max_tokens": max_tokens})
            with suppress(BrokenPipeError):  # the peer has ended; `answer` says why
                print(load, file=stdin, flush=True)
            result = answer()
            _check_tokens(result["tokens"], prompts, max_tokens)
            return Took(result["seconds"], result["first_s"])

        try:
            about = answer()
            yield Contestant(
                name, f"{about['version']}; {about['system']}", run, psutil.Process(process.pid)
            )
        finally:
            with suppress(BrokenPipeError):
                stdin.close()


def gguf_peers(
    recipes: Sequence[Recipe],
    file: Callable[[], Path],
    form: str,
    options: Sequence[str],
    logs: Path,
) -> Iterator[AbstractContextManager[Contestant]]:
    """Yields the recipes' peers that read GGUF files, with a file and the options they advise."""

    def command(recipe: Recipe) -> list[str]:
        return [str(file()), *options, "--threads", str(physical_cores()), *recipe.arguments]

    for recipe in recipes:
        if recipe.name in GGUF_READERS:
            name = f"{recipe.name} {form}"
            yield peer(name, recipe, partial(command, recipe), logs / recipe.name)


def _ended(process: "subprocess.Popen[str]") -> int:
    """Returns the exit status of a process that has closed its output."""
    try:
        return process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(END_TIMEOUT_S)


def _reason(status: int, log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if ERROR.match(line)]
    last = (errors or lines or ["it said nothing"])[-1]
    return f"exit status {status}: {last}"[:MAX_REASON_CHARACTERS]


def _check_tokens(tokens: int, prompts: Prompts, max_tokens: int) -> None:
    wanted = sum(len(requests) for requests in prompts) * max_tokens
    assert tokens == wanted, f"{tokens} tokens came instead of {wanted}"
