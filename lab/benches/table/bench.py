"""Compares quantisation, speculation and batching, also with llama.cpp: `make bench-table`.

For each model, all servers run at once and answer the same requests in turn; one works while the
others are idle. Decoding is greedy, prompts are token ids, and on every server an answer is as long
as the model's own. The parts:

- forms: plain, quantised, Medusa, both; compares the gain of both with the single gains
- sources: quantised with n-grams, with a draft model, and with the scheduler over all sources; and
  a second server that does not draft, to show how far equal servers differ
- batching: BATCHING=dynamic compared with continuous
- peers: llama.cpp's server on the same weights, plain and with its own lookup and draft model
- copies: n-grams and the scheduler if answers repeat the prompt, compared with llama.cpp's lookup
- bound: the scheduler compared with the best draft of a fixed length, and with none, at every load
- random: the costs of n-grams and the scheduler if nothing can be guessed

Nothing else may use the cores. Missing heads or peers are named and left out.
"""

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from benchmarking.machine import describe_machine
from lab.benches.serve.bench import workloads
from lab.benches.table.figures import Claim, Row, Turns, bound_of, row_of
from lab.benches.table.models import SEED, TABLE_MODELS, Model, context_tokens
from lab.benches.table.servers import Form, Servers, started
from lab.benches.table.text import COLUMNS, beside_peers, bounds_text, claim_text, row_text
from lab.benches.table.turns import Server, Turn, turn_of
from lab.kit.completions import Request
from lab.kit.servers import ROOT, exit_on_sigterm

RESULTS = ROOT / "var" / "bench" / "table.json"
TABLE_PARTS = ("forms", "sources", "batching", "peers")
PARTS = (*TABLE_PARTS, "copies", "bound", "random")
BOUND_USERS = (1, 2, 4, 8, 32)
WARM_UP_REQUESTS = 4
RANDOM_REQUESTS = 16


def main() -> None:
    arguments = _arguments()
    exit_on_sigterm()
    results = Results(describe_machine("torch", "gunicorn"))
    for name in arguments.models:
        measure(TABLE_MODELS[name], name, arguments, results)
    if "random" in arguments.parts:
        measure_random(arguments, results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=TABLE_MODELS, default=list(TABLE_MODELS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--users", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--bound-users", nargs="+", type=int, default=list(BOUND_USERS))
    parser.add_argument(
        "--bound-prompts", type=int, default=8, help="each once in every turn of the bound"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each server under a load")
    parser.add_argument("--prompts", type=int, default=60, help="each once in all rounds of 1 user")
    parser.add_argument("--max-tokens", type=int, default=64, help="longest answer")
    parser.add_argument("--quantization", choices=("int8", "int4", "none"), default="int8")
    parser.add_argument("--tokens", type=int, default=4, help="SPECULATION_TOKENS of what drafts")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 2, 4, 8], help="of the bound")
    parser.add_argument(
        "--draft", nargs="*", default=[], metavar="MODEL=FILE", help="a draft model, as GGUF file"
    )
    return parser.parse_args()


class Results:
    """Prints measurements, and keeps them in a file that is complete after every part."""

    def __init__(self, machine: str) -> None:
        self._figures: dict[str, Any] = {"machine": machine, "parts": {}}
        print(f"{machine}\n")

    def title(self, text: str, *lines: str) -> None:
        print("\n".join([f"\n### {text}\n", *lines]), flush=True)

    def add(self, title: str, figures: Sequence[Any], text: str = "") -> None:
        if text:
            print(f"\n{text}", flush=True)
        self._figures["parts"][title] = [asdict(each) for each in figures]
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(self._figures, indent=1))


def measure(model: Model, name: str, arguments: argparse.Namespace, results: Results) -> None:
    asked = model.requests(arguments.prompts, arguments.max_tokens, arguments.quantization)
    drafts = dict(each.split("=", 1) for each in arguments.draft)
    form = Form(
        model,
        arguments.quantization,
        users=max(arguments.users + arguments.bound_users),
        context=context_tokens(asked),
        tokens=arguments.tokens,
        draft=Path(drafts[name]) if name in drafts else None,
    )
    if set(arguments.parts) & set(TABLE_PARTS):
        measure_forms(form, name, asked, arguments, results)
    if "copies" in arguments.parts:
        measure_copies(form, name, arguments, results)
    if "bound" in arguments.parts:
        measure_bound(form, name, asked, arguments, results)


def measure_forms(
    form: Form,
    name: str,
    asked: Sequence[Request],
    arguments: argparse.Namespace,
    results: Results,
) -> None:
    servers = _servers(form, arguments.parts)
    turns_by_users = measure_table(servers, form.auto, name, asked, arguments, results)
    alone = turns_by_users.get(1, {})
    if form.is_quantised and alone.keys() >= {*form.labels}:
        claim = Claim.of(alone, form.labels)
        results.add(f"{name}: the product of gains", [claim], claim_text(claim))


def measure_copies(form: Form, name: str, arguments: argparse.Namespace, results: Results) -> None:
    asked = form.model.requests(
        arguments.prompts, arguments.max_tokens, form.quantization, copying=True
    )
    copying = replace(form, context=context_tokens(asked))
    servers = chain(copying.unaided(), copying.peers() if "peers" in arguments.parts else ())
    measure_table(servers, copying.auto, f"{name}: copies", asked, arguments, results)


def measure_table(
    servers: Servers,
    auto: str,
    title: str,
    asked: Sequence[Request],
    arguments: argparse.Namespace,
    results: Results,
) -> dict[int, Turns]:
    """Measures servers. Returns turns by users. `auto` is the server to compare peers with."""
    turns_by_users: dict[int, Turns] = {}
    rows: list[Row] = []
    with ExitStack() as stack:
        running = started(servers, stack)
        results.title(title, COLUMNS)
        for users in arguments.users:
            count = max(-(-len(asked) // arguments.rounds), 2 * users)
            rounds = shares(asked, count, arguments.rounds)
            chosen, turns = taken_turns(running, warm_up(rounds, users), rounds, users)
            rows += reported(chosen, turns, users)
            turns_by_users[users] = turns
    results.add(title, rows, "\n\n".join(beside_peers(rows, auto, "llama.cpp")))
    return turns_by_users


def _servers(form: Form, parts: Sequence[str]) -> Servers:
    yield from form.forms()
    if "sources" in parts:
        yield from form.sources()
    if "batching" in parts:
        yield from form.batching()
    if "peers" in parts:
        yield from form.peers()


def measure_bound(
    form: Form,
    name: str,
    asked: Sequence[Request],
    arguments: argparse.Namespace,
    results: Results,
) -> None:
    """Measures with the same requests in every turn. Their prompts are in the rows' caches after
    the first turn, which is not counted."""
    title = f"{name}: the bound"
    with ExitStack() as stack:
        reusing = replace(form, prefix_reuse=True)
        servers = started(reusing.bound(arguments.sizes), stack)
        results.title(title, COLUMNS)
        bounds = []
        for users in arguments.bound_users:
            same = asked[: max(users, arguments.bound_prompts)]
            chosen, turns = taken_turns(servers, same, [same] * arguments.rounds, users)
            rows = reported(chosen, turns, users)
            if form.auto in turns:
                bounds.append(bound_of(rows, form.auto, form.base))
    if bounds:
        results.add(title, bounds, bounds_text(bounds))


def measure_random(arguments: argparse.Namespace, results: Results) -> None:
    """Measures random weights at temperature 1, where nothing repeats or can be guessed."""
    [workload] = workloads(["110m"])
    draw = Random(SEED)
    asked = [
        Request(tuple(draw.choices(range(256), k=64)), arguments.max_tokens, 1.0, seed)
        for seed in range(arguments.rounds * max(RANDOM_REQUESTS, *arguments.users))
    ]
    folder = workload.folder
    model = Model(workload.name, lambda: folder, lambda: folder, folder / "medusa", lambda _: [])
    form = Form(
        model,
        arguments.quantization,
        max(arguments.users),
        context_tokens(asked),
        arguments.tokens,
    )
    title = f"{workload.name}, random weights, temperature 1"
    with ExitStack() as stack:
        servers = started(form.unaided(), stack)
        results.title(title, COLUMNS)
        rows = []
        for users in arguments.users:
            rounds = shares(asked, max(RANDOM_REQUESTS, users), arguments.rounds)
            chosen, turns = taken_turns(servers, warm_up(rounds, users), rounds, users)
            rows += reported(chosen, turns, users)
    results.add(title, rows)


def taken_turns(
    servers: Sequence[Server],
    first: Sequence[Request],
    rounds: Sequence[Sequence[Request]],
    users: int,
) -> tuple[list[Server], Turns]:
    """Returns the servers, and a turn of each in each round. A turn with `first` is not counted; of
    servers with the same name, only the one that is fastest in it goes on."""
    able = [server for server in servers if users >= server.least_users]
    speeds = {server.label: turn_of(server, first, users).tokens_per_s for server in able}
    by_speed = sorted(able, key=lambda server: speeds[server.label])
    fastest = {server.name: server for server in by_speed}
    chosen = [server for server in able if fastest[server.name] is server]
    turns: dict[str, list[Turn]] = {server.name: [] for server in chosen}
    for asked in rounds:
        for server in chosen:
            turns[server.name].append(turn_of(server, asked, users))
    return chosen, turns


def warm_up(rounds: Sequence[Sequence[Request]], users: int) -> Sequence[Request]:
    """Returns a few requests, but at least as many as users."""
    return rounds[0][: max(users, WARM_UP_REQUESTS)]


def shares(asked: Sequence[Request], count: int, rounds: int) -> list[list[Request]]:
    """Returns `count` requests for each round, different in every round if there are enough."""
    starts = [number * count for number in range(rounds)]
    return [[asked[(at + place) % len(asked)] for place in range(count)] for at in starts]


def reported(servers: Sequence[Server], turns: Turns, users: int) -> list[Row]:
    """Prints and returns a row of each server."""
    rows = [row_of(server, users, turns) for server in servers]
    print("\n".join(map(row_text, rows)), flush=True)
    return rows
