"""`make bench-speculation`: tokens per second with and without drafts, by turns in one run.

Three servers of one model, `SPECULATION` off, ngram and auto, answer the same chats one after the
other: questions asked again in the same chat, whose answers are copies, and questions asked once,
where most drafts are wrong. One is idle while another is timed. Greedy, so that all have to say
the same. Time it alone: nothing else may use the cores.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import requests

from benchmarking.benches.serve import Workload, served_workload
from benchmarking.benches.turns import Counts
from benchmarking.machine import describe_machine
from benchmarking.serving import ServedApi, exit_on_sigterm

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "var" / "bench" / "speculation.json"
MODES = ("off", "ngram", "auto")  # the first is what the others are compared with
PEOPLE = ("Jonas", "Mira", "Pavel", "Greta", "Omar", "Lena", "Ravi", "Sofia")
CITIES = ("Nashville", "Kyoto", "Lisbon", "Warsaw", "Nairobi", "Quito", "Oslo", "Hanoi")
QUESTIONS = (
    "Draft a letter about {city} from {person} to Maria.",
    "Tell me a story about {person} and a fox.",
    "Give me some facts about the city {city}.",
)
TASKS = ("copying", "ordinary")

Chat = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Turn:
    """All prompts of one task, answered by one server."""

    texts: list[str]
    tokens_per_s: float
    counts: Counts


@dataclass(frozen=True, slots=True)
class Result:
    """Medians over turns; the ratio is of those of one round."""

    task: str
    users: int
    mode: str
    tokens_per_s: float
    ratio: float
    least_ratio: float
    acceptance_rate: float | None
    tokens_per_step: float
    has_same_text: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "hearth-tiny")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--users", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=128)
    arguments = parser.parse_args()
    exit_on_sigterm()
    machine = describe_machine("torch", "gunicorn")
    print(f"{machine}\n\n{COLUMNS}")
    workload = Workload(arguments.model.name, arguments.model, arguments.max_tokens, rounds=1)
    results = []
    with ExitStack() as servers:
        apis = {
            mode: servers.enter_context(
                served_workload(workload, arguments.quantization, SPECULATION=mode)
            )
            for mode in MODES
        }
        for task in TASKS:
            for users in arguments.users:
                for result in measured(apis, task, users, arguments):
                    results.append(result)
                    print(row(result), flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    figures = [asdict(result) for result in results]
    RESULTS.write_text(json.dumps({"machine": machine, "results": figures}, indent=1))


def measured(
    apis: dict[str, ServedApi], task: str, users: int, arguments: argparse.Namespace
) -> Iterator[Result]:
    """A round has a turn of each server; the first round is not counted."""
    turns: dict[str, list[Turn]] = {mode: [] for mode in apis}
    for number in range(arguments.rounds + 1):
        count = max(users, len(PEOPLE))
        asked = chats(task, number, count, apis[MODES[0]], arguments.max_tokens)
        for mode, api in apis.items():
            turn = one_turn(api, asked, users, arguments.max_tokens)
            if number:
                turns[mode].append(turn)
    plain = turns[MODES[0]]
    for mode, own in turns.items():
        yield result_of(task, users, mode, own, plain)


def result_of(
    task: str, users: int, mode: str, own: Sequence[Turn], plain: Sequence[Turn]
) -> Result:
    pairs = list(zip(own, plain, strict=True))
    ratios = [turn.tokens_per_s / other.tokens_per_s for turn, other in pairs]
    counts = Counts.sum(turn.counts for turn in own)
    return Result(
        task,
        users,
        mode,
        median(turn.tokens_per_s for turn in own),
        median(ratios),
        min(ratios),
        counts.acceptance_rate,
        counts.tokens_per_step,
        all(turn.texts == other.texts for turn, other in pairs),
    )


def chats(task: str, number: int, count: int, api: ServedApi, max_tokens: int) -> list[Chat]:
    """Others in every round, so that no cache helps. To copy is to be asked the same again."""
    questions = [
        QUESTIONS[place % len(QUESTIONS)].format(
            person=PEOPLE[(place + number) % len(PEOPLE)],
            city=CITIES[(place * 3 + number) % len(CITIES)],
        )
        for place in range(count)
    ]
    asked = [[{"role": "user", "content": question}] for question in questions]
    if task == "ordinary":
        return asked
    return [
        [*chat, {"role": "assistant", "content": answer(api, chat, max_tokens)}, *chat]
        for chat in asked
    ]


def one_turn(api: ServedApi, asked: Sequence[Chat], users: int, max_tokens: int) -> Turn:
    before, started_s = Counts.of(api), time.perf_counter()
    with ThreadPoolExecutor(users) as pool:
        answers = list(pool.map(lambda chat: answer(api, chat, max_tokens), asked))
    elapsed_s, gained = time.perf_counter() - started_s, Counts.of(api).since(before)
    return Turn(answers, gained.generated_tokens / elapsed_s, gained)


def answer(api: ServedApi, chat: Chat, max_tokens: int) -> str:
    body = {"model": "falcon40b", "messages": chat, "max_tokens": max_tokens, "temperature": 0}
    response = requests.post(f"{api.url}/v1/chat/completions", json=body, timeout=600)
    response.raise_for_status()
    return str(response.json()["choices"][0]["message"]["content"])


COLUMNS = (
    "| task | users | SPECULATION | tokens/s | over off (least) | acceptance | tokens/step "
    "| same text |\n" + "|---" * 8 + "|"
)


def row(result: Result) -> str:
    acceptance = "" if result.acceptance_rate is None else f"{result.acceptance_rate:.0%}"
    return (
        f"| {result.task} | {result.users} | {result.mode} | {result.tokens_per_s:.0f} "
        f"| {result.ratio:.2f} ({result.least_ratio:.2f}) | {acceptance} "
        f"| {result.tokens_per_step:.2f} | {'yes' if result.has_same_text else 'NO'} |"
    )


if __name__ == "__main__":
    main()
