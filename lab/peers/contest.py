"""Contestants of `bench-peers`: our server over HTTP, and peers in processes of their own.

All of them stay loaded and sleep while another one runs; how much processor time they took
meanwhile is part of every result.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from lab.kit.completions import Request, complete
from lab.kit.servers import ROOT, environment, served
from lab.peers.install import Recipe

START_TIMEOUT_S = 900.0

Prompts = Sequence[Sequence[Sequence[int]]]  # [user][request][token]
Run = Callable[[Prompts, int], float]  # prompts and new tokens of each: seconds


@dataclass(frozen=True, slots=True)
class Contestant:
    """One program with one model in one form. `run` is a closed loop."""

    name: str
    about: str
    run: Run
    process: psutil.Process

    def cpu_s(self) -> float:
        """Processor time that it and its children have taken so far."""
        members = [self.process, *self.process.children(recursive=True)]
        return sum(times.user + times.system for times in (each.cpu_times() for each in members))


@contextmanager
def hearth(
    name: str,
    folder: Path,
    users: int,
    context: int,
    log_path: Path,
    settings: Mapping[str, object],
) -> Iterator[Contestant]:
    """The real server; requests are OpenAI's completions, with token ids for a prompt."""
    own: dict[str, Any] = {
        "MODEL": folder,
        "MODEL_NAME": "model",
        "USER_ROWS": users,
        "MAX_SEQ_LEN": context,
    }
    with served(log_path, start_timeout_s=START_TIMEOUT_S, **own | dict(settings)) as api:

        def run(prompts: Prompts, max_tokens: int) -> float:
            def one_user(requests: Sequence[Sequence[int]]) -> int:
                return sum(
                    complete(api.port, Request(tuple(prompt), max_tokens)).num_tokens
                    for prompt in requests
                )

            began_s = time.perf_counter()
            with ThreadPoolExecutor(len(prompts)) as pool:
                tokens = sum(pool.map(one_user, prompts))
            seconds = time.perf_counter() - began_s
            _check_tokens(tokens, prompts, max_tokens)
            return seconds

        about = " ".join(f"{key}={value}" for key, value in settings.items())
        yield Contestant(f"hearth {name}", about, run, psutil.Process(api.process.pid))
        api.stop()


@contextmanager
def peer(
    name: str, recipe: Recipe, arguments: Sequence[str], log_path: Path
) -> Iterator[Contestant]:
    """A peer's own loop, without any HTTP. See `process`."""
    command = [str(recipe.python), "-m", recipe.check, *arguments]
    with (
        log_path.open("wb") as log,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(**recipe.settings),
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
            line = stdout.readline()
            assert line, f"{name} has ended: {log_path.read_text()[-500:]}"
            parsed: dict[str, Any] = json.loads(line)
            return parsed

        def run(prompts: Prompts, max_tokens: int) -> float:
            print(
                json.dumps({"prompts": prompts, "max_tokens": max_tokens}), file=stdin, flush=True
            )
            result = answer()
            _check_tokens(result["tokens"], prompts, max_tokens)
            return float(result["seconds"])

        about = answer()
        yield Contestant(
            name, f"{about['version']}; {about['system']}", run, psutil.Process(process.pid)
        )
        stdin.close()


def _check_tokens(tokens: int, prompts: Prompts, max_tokens: int) -> None:
    wanted = sum(len(requests) for requests in prompts) * max_tokens
    assert tokens == wanted, f"{tokens} tokens came instead of {wanted}"
