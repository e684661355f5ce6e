"""`make bench-table`: quantisation, speculation and batching side by side, and beside llama.cpp.

For each model all servers are up at once and answer the same requests in turn, A B C A B C: one
works while the others are idle. Greedy; prompts are token ids, and every answer is as long as the
model's own, whoever writes it. The parts:

- forms: plain, quantised, Medusa, both; and how the gain of both compares with the single gains
- sources: quantised with n-grams, with a draft model, and with the scheduler over all of them; and
  a second server that does not draft, for how far equals differ
- batching: BATCHING=dynamic beside continuous
- peers: llama.cpp's server on the same weights, plain and with its own lookup and draft model
- copies: n-grams and the scheduler where answers repeat what the prompt says, beside llama.cpp's
- bound: the scheduler beside the best draft of a fixed length, and beside none, at every load
- random: n-grams and the scheduler where nothing can be guessed: what they cost

Time it alone: nothing else may use the cores. What is not here (heads, peer) is left out by name.
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
    """Gathers what was measured: prints it, and keeps it in a file, complete after every part."""

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
    """Returns the turns by users. `auto`: the server that peers are compared with."""
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
    """The same requests in every turn: their prompts are in the rows' caches after the first, which
    is not counted."""
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
    """Samples of random weights at temperature 1: nothing repeats, and nothing can be guessed."""
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
    """Of each server a turn in each round, after one of `first`, which is not counted. Of servers
    with one name only the one that was fastest there goes on."""
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
    """Few requests, as many as users at least."""
    return rounds[0][: max(users, WARM_UP_REQUESTS)]


def shares(asked: Sequence[Request], count: int, rounds: int) -> list[list[Request]]:
    """`count` requests for each round, others in every round as far as there are any."""
    starts = [number * count for number in range(rounds)]
    return [[asked[(at + place) % len(asked)] for place in range(count)] for at in starts]


def reported(servers: Sequence[Server], turns: Turns, users: int) -> list[Row]:
    """A row of each server, printed."""
    rows = [row_of(server, users, turns) for server in servers]
    print("\n".join(map(row_text, rows)), flush=True)
    return rows
