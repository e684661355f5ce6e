"""Asks both small models 200 questions of newcomers, and judges the answers: `make bench-answers`.

The embedded model and SmolLM2-135M-Instruct (in int8, as with `make serve MODEL=smollm2`) answer
greedily through the served API. Rules that were written before any model was asked judge each
answer without knowing which model gave it: `lab/data/newcomer_prompts.yaml` and
`lab/kit/answers.py`. Nothing is timed, and the figures are the same in every run on one kind of
processor. `var/bench/answers.json` has the answers with their verdicts.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarking.machine import describe_machine
from lab.kit.answers import Prompt, Verdict, judge, read_prompts
from lab.kit.servers import ROOT, ServedApi, exit_on_sigterm, served
from scripts.fetch_smollm2 import fetch_smollm2

RESULTS = ROOT / "var" / "bench" / "answers.json"
MAX_TOKENS = 200
USERS = 8
START_TIMEOUT_S = 600.0
SERVED_NAME = "newcomers"
QUANTIZATION = {"hearth-tiny": "none", "smollm2": "int8"}  # as each model is usually served


@dataclass(frozen=True, slots=True)
class Judged:
    prompt: Prompt
    answer: str
    verdict: Verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=QUANTIZATION, default=list(QUANTIZATION))
    arguments = parser.parse_args()
    exit_on_sigterm()
    print(f"{describe_machine('torch')}\n")
    prompts = read_prompts()
    by_model = {name: ask_all(name, prompts) for name in arguments.models}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(records(by_model), indent=1, ensure_ascii=False))
    print(table(by_model))


def ask_all(name: str, prompts: Sequence[Prompt]) -> list[Judged]:
    model = fetch_smollm2() if name == "smollm2" else ROOT / "models" / name
    settings: dict[str, Any] = {"MODEL": model, "MODEL_NAME": SERVED_NAME}
    settings["QUANTIZATION"] = QUANTIZATION[name]
    with (
        TemporaryDirectory() as folder,
        served(Path(folder) / "log", start_timeout_s=START_TIMEOUT_S, **settings) as api,
        ThreadPoolExecutor(USERS) as pool,
    ):
        answers = list(pool.map(lambda prompt: ask(api, prompt), prompts))
        api.stop()
    return [
        Judged(prompt, answer, judge(prompt, answer))
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def ask(api: ServedApi, prompt: Prompt) -> str:
    body = {"model": SERVED_NAME, "temperature": 0, "max_tokens": MAX_TOKENS}
    messages = [{"role": "user", "content": prompt.ask}]
    answer = api.post("/v1/chat/completions", messages=messages, **body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"] or "")


def table(by_model: Mapping[str, Sequence[Judged]]) -> str:
    """Returns a table of acceptable (and declining) answers by category, and of other faults."""
    first = next(iter(by_model.values()))
    categories = dict.fromkeys(each.prompt.category for each in first)
    heads = ["category", "prompts", *by_model]
    lines = [_row(heads), "|---" * len(heads) + "|"]
    for category in (*categories, None):
        chosen = {
            name: [each for each in judged if category in (None, each.prompt.category)]
            for name, judged in by_model.items()
        }
        size = str(len(next(iter(chosen.values()))))
        lines.append(_row([category or "all", size, *map(_share, chosen.values())]))
    for verdict in Verdict:
        if not verdict.is_acceptable:
            counts = [sum(e.verdict is verdict for e in judged) for judged in by_model.values()]
            lines.append(_row([verdict.value, "", *map(str, counts)]))
    return "\n".join(lines)


def _share(judged: Sequence[Judged]) -> str:
    acceptable = sum(each.verdict.is_acceptable for each in judged)
    declined = sum(each.verdict is Verdict.DECLINED for each in judged)
    return f"{acceptable} ({declined})"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def records(by_model: Mapping[str, Sequence[Judged]]) -> list[dict[str, str]]:
    return [
        {
            "model": name,
            "category": each.prompt.category,
            "ask": each.prompt.ask,
            "answer": each.answer,
            "verdict": each.verdict.value,
        }
        for name, judged in by_model.items()
        for each in judged
    ]
