"""Sends the same requests to two servers and prints where their answers differ.

    python -m lab.replay http://127.0.0.1:7000 http://127.0.0.1:7001 --requests 12000

For a change that must not change answers: serve the old and the new version as mocks (`make mock`)
and compare. Requests are valid bodies of each route and, mostly, mutations of them, drawn from a
seed. What differs between any two answers of one server (ids, times, reused tokens) is left out.
"""

import argparse
import copy
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import requests

SHOWN = 12  # differences that are printed whole
TIMEOUT_S = 60
MODEL = "hearth-tiny"
TOOL = {
    "name": "weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}]
BODIES: dict[str, dict[str, Any]] = {
    f"/predictions/{MODEL}": {"text": "Hello", "temperature": 0.5, "top_k": 4, "max_tokens": 8},
    f"/inference/{MODEL}": {"text": "Hello", "stop_sequence": "l", "return_prompt": True},
    f"/chat/{MODEL}": {"text": "Hello", "max_tokens": 4},
    "/v1/completions": {"model": MODEL, "prompt": "Hello", "max_tokens": 6, "logprobs": 2, "n": 1},
    "/v1/chat/completions": {
        "model": MODEL,
        "messages": TURNS,
        "max_tokens": 9,
        "stop": ["z"],
        "tools": [{"type": "function", "function": TOOL}],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "logit_bias": {"65": 1.5},
        "stream": False,
        "stream_options": {"include_usage": True},
    },
    "/v1/responses": {
        "model": MODEL,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
        "instructions": "Be brief.",
        "max_output_tokens": 20,
        "tools": [{"type": "function", **TOOL}],
        "reasoning": {"effort": "low"},
        "stream": False,
    },
    "/v1/messages": {
        "model": MODEL,
        "max_tokens": 7,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        "tools": [{"name": "weather", "input_schema": TOOL["parameters"]}],
        "stop_sequences": ["z"],
        "stream": False,
    },
    "/v1/messages/count_tokens": {"model": MODEL, "messages": [TURNS[1]]},
    "/v1/embeddings": {"model": MODEL, "input": ["Hello", "there"], "encoding_format": "float"},
    "/tokenize": {"model": MODEL, "prompt": "Hello", "add_special_tokens": True},
    "/detokenize": {"model": MODEL, "tokens": [72, 105]},
    "/weights_gen": {"session_id": "s", "number_of_nodes": 3, "seed": 1},
    "/size": {"rate": 1.0, "model": "m"},
    "/bundle/validate": {"bundle": "experts: []"},
}
PAGES = (
    "/v1/models",
    f"/v1/models/{MODEL}",
    "/ping",
    "/bundle",
    "/catalogue",
    "/nowhere",
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 0.5, 1e308, 2**63, "", "x", "0", "é\U0001f600\u0000", " "),
    *([], [None], ["a", "b"], {}, {"type": "x"}, [[]], "x" * 5000, [1, 2, 3], [{}]),
)
EXTRA_KEYS = ("stream", "seed", "n", "min_p", "user", "unknown", "temperature", "stop", "priority")
# An id, a time or a count that two answers of the same server do not share.
OWN = re.compile(
    r"(?:chatcmpl|cmpl|resp|msg|toolu|call|fc|rs|req|embd|modelperm|sess)[-_][\w-]{8,}"
    r"|\b[0-9a-f]{32}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    r'|"(?:created|\w+_at|\w*_s|\w*time|\w*time_to_\w+|\w*latency|\w*per_sec\w*|cached_tokens)": ?'
    r"[-\d.e]+"
)
HEADERS = ("Content-Type", "X-Hearth-Ignored", "Retry-After", "Allow", "WWW-Authenticate")


class Request(NamedTuple):
    method: str
    path: str
    body: bytes | None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the answers of two servers.")
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--requests", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    drawn_requests = islice(drawn(random.Random(options.seed)), options.requests)
    servers = [(requests.Session(), url) for url in (options.old, options.new)]
    statuses: Counter[int] = Counter()
    differing: Counter[str] = Counter()
    for each in drawn_requests:
        old, new = (answer(session, url, each) for session, url in servers)
        statuses[new[0]] += 1
        if old != new:
            differing[each.path] += 1
            if differing.total() <= SHOWN:
                print(f"{each.method} {each.path} {each.body!r:.600}\n  old {old}\n  new {new}")
    print(f"{statuses.total()} requests, {differing.total()} answers differ: {dict(differing)}")
    print("statuses:", ", ".join(f"{status} {count}" for status, count in sorted(statuses.items())))
    return 1 if differing else 0


def drawn(rng: random.Random) -> Iterator[Request]:
    """Endlessly: a page, a valid body, or one that was mutated once or twice."""
    while True:
        if rng.random() < 0.05:
            yield Request("GET", rng.choice(PAGES), None)
            continue
        path = rng.choice(list(BODIES))
        body = copy.deepcopy(BODIES[path])
        if rng.random() < 0.8:
            for _ in range(rng.randint(1, 2)):
                mutate(body, rng)
        text = json.dumps(body)
        if rng.random() < 0.03:  # cut, as by a client that was interrupted
            text = text[: rng.randrange(len(text))]
        yield Request("POST", path, text.encode())


def mutate(value: Any, rng: random.Random) -> None:
    """Change, remove or add something somewhere in a body, in place."""
    inner = [each for each in nested(value) if each]
    if not inner:
        return
    place = rng.choice(inner)
    key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
    how = rng.random()
    if how < 0.6:
        place[key] = copy.deepcopy(rng.choice(VALUES))
    elif how < 0.75:
        del place[key]
    elif isinstance(place, dict):
        place[rng.choice(EXTRA_KEYS)] = copy.deepcopy(rng.choice(VALUES))
    else:
        place.append(copy.deepcopy(rng.choice(VALUES)))


def nested(value: Any) -> Iterator[Any]:
    """The objects and lists in a body, the outermost first."""
    if isinstance(value, dict | list):
        yield value
        for each in value.values() if isinstance(value, dict) else value:
            yield from nested(each)


def answer(
    session: requests.Session, url: str, request: Request
) -> tuple[int, dict[str, str], str]:
    headers = {"Content-Type": "application/json"}
    response = session.request(
        request.method, url + request.path, data=request.body, headers=headers, timeout=TIMEOUT_S
    )
    received = {name: response.headers[name] for name in HEADERS if name in response.headers}
    return response.status_code, received, OWN.sub("*", response.text)


if __name__ == "__main__":
    sys.exit(main())
