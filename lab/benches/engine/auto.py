"""Measures what SPECULATION=auto costs or gains in the decode thread, without clients:
`make bench-auto`.

Equal servers under load differ by more than that. So the decode loops of three servers take turns
in one process: two never draft, as a control, and one is `auto`. Every free row gets the next
request, a question in held-out wording that is answered greedily. Nobody reads the answers. Ratios
are between turns of the same round. Nothing else may use the cores.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from random import Random
from time import monotonic, perf_counter
from typing import NamedTuple

from benchmarking.machine import describe_machine
from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.input_queue import InputQueue
from inference_api.core.output_queues import OutputQueues
from inference_api.inference_api_server import bring_up_of
from inference_api.request import (
    GenerationParams,
    GenerationRequest,
    OutputQueue,
    SamplingParams,
    SessionId,
)
from inference_api.settings import Settings
from lab.benches.table.figures import Spread
from lab.benches.table.models import TABLE_MODELS, Model
from lab.models.default.evaluation import draw_trials

SEED = 20261127
PROMPTS = 400
MAX_TOKENS = 64
CONTEXT_TOKENS = 512
OFF, AGAIN, AUTO = "off", "off, again", "auto"
GREEDY = SamplingParams(temperature=0.0)


class Turn(NamedTuple):
    """Means over the steps of a turn."""

    tokens_per_s: float
    model_us: float  # per step
    loop_us: float  # per step, outside the model
    tokens_per_step: float


class DecodeLoop:
    """A server's decode loop, run by this thread."""

    def __init__(self, speculation: str, users: int, model: Model, quantization: str) -> None:
        settings = Settings.model_validate(
            {
                "model": str(model.fetch()),
                "medusa_heads": str(model.heads),
                "speculation": speculation,
                "quantization": quantization,
                "prefix_reuse": False,
                "max_seq_len": CONTEXT_TOKENS,
            }
        )
        self._name = settings.served_models[0].name
        self._users = users
        self._input_queue = InputQueue(2 * users, {self._name: settings.user_rows}, monotonic)
        queues, bring_up = (self._input_queue, OutputQueues()), bring_up_of(settings)
        self._backend = DecodeBackend(settings, *queues, bring_up, clock=monotonic)
        self._backend.load_model_and_tokenizer()
        self._model = self._backend.models[self._name]
        self._model.warm_up()
        tokenizer = self._model.served.tokenizer
        trials = Random(SEED).sample(draw_trials(SEED, per_category=PROMPTS), PROMPTS)
        self._prompts = [tuple(tokenizer.encode(trial.exchange.question)) for trial in trials]
        self._next = count()

    def turn(self, num_tokens: int) -> Turn:
        """Runs steps until `num_tokens` are generated. Returns the turn's means."""
        totals = self._model.served.totals
        before, started_s = replace(totals), perf_counter()
        while totals.generated_tokens - before.generated_tokens < num_tokens:
            for _ in range(self._users - len(self._model.rows)):
                self._submit()
            self._backend.step()
        seconds = perf_counter() - started_s
        num_steps = totals.steps - before.steps
        generated_tokens = totals.generated_tokens - before.generated_tokens
        return Turn(
            generated_tokens / seconds,
            1e6 * (totals.model_s - before.model_s) / num_steps,
            1e6 * (totals.loop_s - before.loop_s) / num_steps,
            generated_tokens / num_steps,
        )

    def _submit(self) -> None:
        prompt = self._prompts[next(self._next) % len(self._prompts)]
        stop_token_ids = self._model.served.tokenizer.stop_token_ids
        self._input_queue.put(
            GenerationRequest(
                OutputQueue(SessionId(""), self._name),  # nobody reads
                self._name,
                prompt,
                GenerationParams(MAX_TOKENS, sampling=GREEDY),
                stop_token_ids=stop_token_ids,
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=TABLE_MODELS, default="hearth-tiny")
    parser.add_argument("--users", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=1000, help="of a turn, about")
    parser.add_argument("--quantization", choices=("none", "int8", "int4"), default="int8")
    arguments = parser.parse_args()
    print(f"{describe_machine('torch')}; {arguments.model}, {arguments.quantization}\n")
    print("| users | SPECULATION | tokens/s | ÷ off | model µs | loop µs | tokens/step |")
    print("|---|---|---|---|---|---|---|")
    for users in arguments.users:
        model, quantization = TABLE_MODELS[arguments.model], arguments.quantization
        turns = taken_turns(users, arguments.rounds, arguments.steps, model, quantization)
        for name, own in turns.items():
            print(line(users, name, own, turns[OFF]), flush=True)


def taken_turns(
    users: int, rounds: int, steps: int, model: Model, quantization: str
) -> dict[str, list[Turn]]:
    """Returns each loop's turns, one per round. Rounds alternate the order of loops. A first round
    is not counted."""
    loops = {
        OFF: DecodeLoop("off", users, model, quantization),
        AGAIN: DecodeLoop("off", users, model, quantization),
        AUTO: DecodeLoop("auto", users, model, quantization),
    }
    turns: dict[str, list[Turn]] = {name: [] for name in loops}
    for number in range(rounds + 1):
        for name in [*loops] if number % 2 else [*reversed(loops)]:
            turn = loops[name].turn(steps * users)
            if number:
                turns[name].append(turn)
    return turns


def line(users: int, name: str, own: Sequence[Turn], off: Sequence[Turn]) -> str:
    speed = Spread.of([turn.tokens_per_s for turn in own])
    pairs = zip(own, off, strict=True)
    ratio = Spread.of([turn.tokens_per_s / other.tokens_per_s for turn, other in pairs])
    model, loop, per_step = (
        Spread.of(values).median for values in list(zip(*own, strict=True))[1:]
    )
    shown = "" if name == OFF else f"{ratio:.3f}"
    return (
        f"| {users} | {name} | {speed:.0f} | {shown} | {model:.0f} | {loop:.0f} | {per_step:.2f} |"
    )
