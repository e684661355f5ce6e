"""Compares the time to learn step costs from a step with the step's own time: `make bench-costs`.

The embedded model decodes rows of 128 tokens. After every step its time is learned, as in a server.
Nothing else may use the cores.
"""

import argparse
import time
from statistics import median

from benchmarking.machine import describe_machine
from inference_api._mock_inference_api_server import ByteTokenizer
from inference_api.core.loaded_model import LoadedModel
from inference_api.core.plan import PlannedStep
from inference_api.core.rows import RowTable
from inference_api.core.state.row_pages import RowPages
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.loading.options import EngineOptions
from inference_api.model_loading import loaded_alone
from inference_api.request import GenerationParams, GenerationRequest, OutputQueue, SessionId
from inference_api.settings import EMBEDDED_MODEL, Settings

MAX_ROWS = 32
ROWS = (1, 8, MAX_ROWS - 1)
PROMPT_TOKENS = 13
CONTEXT_TOKENS = 128
LEARNED = 200  # repeats after a step, because a single one is too short to time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500, help="for each line")
    num_steps = parser.parse_args().steps
    settings = Settings(model=str(EMBEDDED_MODEL), user_rows=MAX_ROWS)
    runner = KernelRunner(EMBEDDED_MODEL, EngineOptions.from_settings(settings))
    runner.load()
    model = loaded_alone("m", runner, ByteTokenizer(), settings)
    model.warm_up()
    print(f"{describe_machine('torch')}\n")
    print("| rows | prompt tokens | step ms | learning µs | share |")
    print("|---|---|---|---|---|")
    for rows in ROWS:
        for prompt_tokens in (0, PROMPT_TOKENS):
            print(line(model, rows, prompt_tokens, num_steps), flush=True)


def line(model: LoadedModel, num_rows: int, prompt_tokens: int, num_steps: int) -> str:
    """Returns the table's line with the medians of both times."""
    pages = RowPages(model.runner, MAX_ROWS, reuses=False)
    rows = RowTable(MAX_ROWS, pages)
    output = OutputQueue(SessionId("s"), model.name)
    request = GenerationRequest(output, model.name, (0,) * CONTEXT_TOKENS, GenerationParams(1))
    step = PlannedStep()
    for _ in range(num_rows):
        row = rows.assign(request, CONTEXT_TOKENS + 1, 0.0)
        rows.reserve(row, CONTEXT_TOKENS)
        row.num_cached = CONTEXT_TOKENS - 1
        step.decoding.append((row, row.take_step()))
    if prompt_tokens:
        row = rows.assign(request, CONTEXT_TOKENS + 1, 0.0)
        rows.reserve(row, prompt_tokens)
        step.prompts.append((row, row.take_prompt(prompt_tokens)))
    times, learning_s = [], []
    for _ in range(num_steps):
        began_s = time.perf_counter()
        model.runner.step(step.rows)
        times.append(step_s := time.perf_counter() - began_s)
        began_s = time.perf_counter()
        for _ in range(LEARNED):
            model.learn_turn(step, step_s, 0.0)
        learning_s.append((time.perf_counter() - began_s) / LEARNED)
    share = median(learning_s) / median(times)
    return (
        f"| {num_rows} | {prompt_tokens} | {1000 * median(times):.3f} "
        f"| {1e6 * median(learning_s):.1f} | {share:.2%} |"
    )
