"""The loop that every peer process runs, in the peer's own environment: standard library only.

The parent writes one JSON object a line to standard input: `{"prompts": [[[id, …], …], …],
"max_tokens": n}`, where `prompts[user]` are the requests that this user sends one after the other.
The answer is a line `{"first_s": s, "seconds": s, "tokens": n}`, where `first_s` is the time until
the first token of any user. Between lines the process sleeps in a read.
"""

import argparse
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Engine(Protocol):
    """A peer with continuous batching. Its answers are greedy and ignore EOS."""

    def add(self, user: int, prompt: Sequence[int], max_tokens: int) -> None:
        """Add a request. A user has one at a time."""

    def step(self) -> tuple[int, list[int]]:
        """Compute a step. Returns the number of new tokens, and the users whose answers ended."""


def main(about: dict[str, Any], make_engine: Callable[..., Engine], **options: Any) -> None:
    """Runs a peer's command, which makes the engine from `MODEL` and `options`, given here with
    their defaults. Without a model it prints `about`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    for name, default in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    arguments = vars(parser.parse_args())
    if arguments["model"] is None:
        print(f"{about['version']}; {about['system']}")
        return
    serve(lambda: make_engine(**arguments), about)


def serve(make_engine: Callable[[], Engine], about: dict[str, Any]) -> None:
    """Answers the parent until it closes standard input. The first line is `about`; it comes when
    the engine is ready."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the peer's libraries may print
    engine = make_engine()
    print(json.dumps(about), file=answers)
    for line in sys.stdin:
        load = json.loads(line)
        print(json.dumps(run(engine, load["prompts"], load["max_tokens"])), file=answers)


def run(
    engine: Engine, prompts: Sequence[Sequence[Sequence[int]]], max_tokens: int
) -> dict[str, Any]:
    """Runs a closed loop: a user's next request is sent when its last answer is complete."""
    waiting = [deque(requests) for requests in prompts]
    num_tokens = 0
    first_s = None
    began_s = time.perf_counter()
    for user, requests in enumerate(waiting):
        engine.add(user, requests.popleft(), max_tokens)
    num_running = len(waiting)
    while num_running:
        num_new, finished = engine.step()
        num_tokens += num_new
        if num_new and first_s is None:
            first_s = time.perf_counter() - began_s
        for user in finished:
            if waiting[user]:
                engine.add(user, waiting[user].popleft(), max_tokens)
            else:
                num_running -= 1
    return {"first_s": first_s, "seconds": time.perf_counter() - began_s, "tokens": num_tokens}
