"""Compares throughput of constrained answers with free ones as long: `make bench-constraints`.

32 users send a thousand chats over twenty JSON schemas, and every answer is checked against its
schema. Then they send the same chats without schemas, for as many tokens each. The table shows the
alternating rounds. Nothing else may use the cores.
"""

import argparse
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

import jsonschema

from benchmarking.machine import describe_machine
from lab.benches.engine.schemas import SCHEMAS
from lab.benches.serve.bench import Workload, served_workload, workloads
from lab.kit.servers import ServedApi, exit_on_sigterm

USERS = 32
MAX_TOKENS = 200


@dataclass(frozen=True, slots=True)
class Chat:
    """One request, with the schema of its answer or the number of its tokens."""

    question: str
    seed: int
    schema: dict[str, Any] | None = None
    num_tokens: int | None = None

    def body(self) -> dict[str, Any]:
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": self.schema}}
        free = {"max_tokens": self.num_tokens, "ignore_eos": True}
        bound = {"max_tokens": MAX_TOKENS, "response_format": form}
        message = {"role": "user", "content": self.question}
        return {"seed": self.seed, "messages": [message], **(bound if self.schema else free)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["hearth-tiny"])
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    exit_on_sigterm()
    print(f"{describe_machine('torch', 'llguidance')}\n")
    print("| model | requests | all valid | constrained tokens/s | free tokens/s | ratio |")
    print("|---|---|---|---|---|---|")
    for workload in workloads(arguments.models):
        measure(workload, arguments.quantization, arguments.requests, arguments.rounds)


def measure(workload: Workload, quantization: str, num_requests: int, rounds: int) -> None:
    dice = random.Random(0)
    chats = [
        Chat(f"Tell me about city {number}.", number, dice.choice(SCHEMAS))
        for number in range(num_requests)
    ]
    with served_workload(workload, quantization) as api:
        run(api, workload, chats[:USERS])  # compiles the grammars, warms the server
        ratios = []
        for _ in range(rounds):
            answers, constrained_per_s = run(api, workload, chats)
            valid = sum(is_valid(chat, answer) for chat, answer in zip(chats, answers, strict=True))
            free = [
                Chat(chat.question, chat.seed, num_tokens=answer["usage"]["completion_tokens"])
                for chat, answer in zip(chats, answers, strict=True)
            ]
            _, free_per_s = run(api, workload, free)
            ratios.append(constrained_per_s / free_per_s)
            print(
                f"| {workload.name} {quantization} | {num_requests} | {valid == num_requests} "
                f"| {constrained_per_s:.0f} | {free_per_s:.0f} | {ratios[-1]:.2f} |",
                flush=True,
            )
        print(f"| {workload.name} {quantization} | | | | median | {median(ratios):.2f} |")


def run(api: ServedApi, workload: Workload, chats: list[Chat]) -> tuple[list[Any], float]:
    """Sends the chats. Returns the answers and tokens/s."""

    def ask(chat: Chat) -> Any:
        model = workload.folder.name
        answer = api.post("/v1/chat/completions", model=model, **chat.body())
        assert answer.status_code == 200, answer.text
        return answer.json()

    begun_s = time.perf_counter()
    with ThreadPoolExecutor(USERS) as pool:
        answers = list(pool.map(ask, chats))
    elapsed_s = time.perf_counter() - begun_s
    return answers, sum(each["usage"]["completion_tokens"] for each in answers) / elapsed_s


def is_valid(chat: Chat, answer: Any) -> bool:
    assert chat.schema is not None
    try:
        content = answer["choices"][0]["message"]["content"]
        jsonschema.validate(json.loads(content), chat.schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True
