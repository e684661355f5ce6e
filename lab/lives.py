"""Many requests at once at a real server of little memory, compared with each request alone.

    python -m lab.lives                     # 500 requests, memory for 20 % of their tokens
    python -m lab.lives --share 0.02 KV_CACHE_DTYPE=int4 SPECULATION=ngram PREFIX_CACHE_DIR=pages

Requests have 10 to 8,000 tokens, a third of them with the same beginning; every seventh client
leaves early. All others must be told what a server with memory for all tells each of them alone. In
the end no request may be left, and no page held. Otherwise the exit status is not 0. Settings are
those of the server of little memory.
"""

import argparse
import http.client
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from lab.benches.state.memory import QUANTIZATION, cache_for
from lab.kit.completions import REQUEST_TIMEOUT_S, NotAnswered, Request, streamed
from lab.kit.servers import eventually, exit_on_sigterm, served
from lab.models.random_model import SHAPES, make_random_model

SHAPE = replace(SHAPES["tiny"], context_tokens=8192)
LEAST_TOKENS, MOST_TOKENS = 10, 8000  # of a request
MOST_ANSWERED_TOKENS = 500
BEGINNING_TOKENS = 300
NUM_BYTES = 256  # the tokens of the model that are text
LEAVES_EVERY = 7
ALONE = {"USER_ROWS": 1, "PREFIX_REUSE": "false", "SPECULATION": "off", "KV_CACHE_MEMORY": "auto"}
IDLE_TIMEOUT_S = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare requests at once with each alone.")
    parser.add_argument("settings", nargs="*", help="NAME=VALUE")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--share", type=float, default=0.2, help="of their tokens, in memory")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    random = Random(options.seed)
    requests = requests_of(options.requests, random)
    num_tokens = sum(len(each.prompt) + each.max_tokens for each in requests)
    room_tokens = max(int(options.share * num_tokens), SHAPE.context_tokens)
    with TemporaryDirectory(prefix="hearth-lives-") as scratch:
        folder = Path(scratch)
        make_random_model(SHAPE, model := folder / "model")
        own: dict[str, Any] = {"MODEL": model, "QUANTIZATION": QUANTIZATION}
        own |= {"MAX_INPUT_QSIZE": len(requests), **cache_for(model, room_tokens)}
        own |= dict(setting.split("=", 1) for setting in options.settings)
        with served(folder / "log", **own) as api, ThreadPoolExecutor(len(requests)) as pool:
            leaving = [
                pool.submit(leave, api.port, each, random.randrange(40))
                for each in requests[::LEAVES_EVERY]
            ]
            del requests[::LEAVES_EVERY]
            together = [*pool.map(partial(answer, api.port), requests)]
            for each in leaving:
                each.result()
            eventually(api.is_idle, IDLE_TIMEOUT_S, what="that no request is left")
            state = api.state()
        with served(folder / "alone", **own | ALONE) as api:
            alone = [answer(api.port, each) for each in requests]
    num_held = state["pages"] - state["cached_pages"] - state["free_pages"]
    num_wrong = sum(mine != its for mine, its in zip(together, alone, strict=True))
    print(
        f"{num_tokens} tokens of {options.requests} requests on {state['pages']} pages of 32: "
        f"{len(requests)} answered, {num_wrong} of them otherwise than alone, {len(leaving)} left, "
        f"{state['totals']['pauses']} pauses, {num_held} pages held in the end"
    )
    return int(bool(num_wrong or num_held))


def requests_of(count: int, random: Random) -> list[Request]:
    """Returns requests whose sizes are even by their logarithm."""
    beginning, requests = random.choices(range(NUM_BYTES), k=BEGINNING_TOKENS), list[Request]()
    for number in range(count):
        size = round(LEAST_TOKENS * (MOST_TOKENS / LEAST_TOKENS) ** random.random())
        max_tokens = random.randrange(1, min(size, MOST_ANSWERED_TOKENS))
        own = random.choices(range(NUM_BYTES), k=size - max_tokens)
        prompt = [*beginning[: len(own) if number % 3 == 0 else 0], *own][: len(own)]
        temperature = random.choice((0.0, 0.8))
        requests.append(Request(tuple(prompt), max_tokens, temperature, seed=number))
    return requests


def answer(port: int, request: Request) -> tuple[str, list[float]]:
    """Returns what a request is told, and how likely each token was. Raises NotAnswered."""
    body = {"ignore_eos": True, "logprobs": 0, **asdict(request)}
    stream = streamed(port, "/v1/completions", body)
    if stream.num_tokens != request.max_tokens:
        raise NotAnswered(f"{stream.last}")
    choices = [choice for event in stream.events for choice in event["choices"]]
    scored = [choice["logprobs"]["token_logprobs"] for choice in choices if choice["logprobs"]]
    return stream.text, [*chain(*scored)]


def leave(port: int, request: Request, num_reads: int) -> None:
    """Hang up after so many reads of the answer, or where it ends."""
    body = json.dumps({"stream": True, **asdict(request)})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT_S)
    connection.request("POST", "/v1/completions", body)
    if num_reads:
        response = connection.getresponse()
        while num_reads and response.read1():
            num_reads -= 1
    connection.close()


if __name__ == "__main__":
    sys.exit(main())
