"""Measures inter-token latency of streams while long prompts keep arriving: `make bench-itl`.

All user rows but one run long answers; the last row gets one prompt of 512 tokens after another.
The table shows the streams' ITL with the default `ITL_BUDGET`, and with a budget so large that
prompts are prefilled in whole chunks. Nothing else may use the cores.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, pairwise
from statistics import median
from threading import Event, Thread

from lab.benches.serve.bench import (
    Workload,
    model_arguments,
    p99,
    served_workload,
    stream_once,
    workloads,
)
from lab.kit.servers import ServedApi

USER_ROWS = 32
ANSWER_TOKENS = 192
ARRIVING_CHARS = 512  # the models of random weights have one token per character
NO_BUDGET = 1000
BUDGETS = (1.4, NO_BUDGET)


def main() -> None:
    arguments = model_arguments(__doc__)
    print("| model | ITL_BUDGET | ITL p50 ms | ITL p99 ms | p99 / p50 | prompts taken | tokens/s |")
    print("|---|---|---|---|---|---|---|")
    for workload in workloads(arguments.models):
        for budget in BUDGETS:
            print(row(workload, arguments.quantization, budget), flush=True)


def row(workload: Workload, quantization: str, budget: float) -> str:
    settings = {"MAX_SEQ_LEN": 1024, "USER_ROWS": USER_ROWS, "ITL_BUDGET": budget}
    with served_workload(workload, quantization, **settings) as api:
        itl_ms, num_prompts, tokens_per_s = measure(api, workload)
    p50_ms, p99_ms = median(itl_ms), p99(itl_ms)
    name = f"{workload.name} {quantization}"
    return (
        f"| {name} | {'none' if budget == NO_BUDGET else budget} | {p50_ms:.1f} | {p99_ms:.1f} "
        f"| {p99_ms / p50_ms:.2f} | {num_prompts} | {tokens_per_s:.1f} |"
    )


def measure(api: ServedApi, workload: Workload) -> tuple[list[float], int, float]:
    """Returns the streams' ITL in ms while all of them run, the number of prompts, and tokens/s."""
    stream_once(api.port, "warm up", max_tokens=4)
    with ThreadPoolExecutor(USER_ROWS - 1) as pool:
        running = [
            pool.submit(stream_once, api.port, workload.prompt(user, 0), ANSWER_TOKENS)
            for user in range(USER_ROWS - 1)
        ]
        with arriving_prompts(api, workload) as taken:
            streams = [future.result() for future in running]
    begun_s = max(stream.pieces_s[0] for stream in streams)
    ended_s = min(stream.pieces_s[-1] for stream in streams)
    itl_ms = [
        1000 * (later - earlier)
        for stream in streams
        for earlier, later in pairwise(stream.pieces_s)
        if begun_s <= earlier and later <= ended_s
    ]
    return itl_ms, len(taken), len(itl_ms) / (ended_s - begun_s)


@contextmanager
def arriving_prompts(api: ServedApi, workload: Workload) -> Iterator[list[int]]:
    """Sends one long prompt after another, for one token each. The list grows with each answer."""
    taken: list[int] = []
    is_over = Event()

    def send() -> None:
        for turn in count():
            if is_over.is_set():
                return
            text = f"{turn} {workload.prompt(turn, turn)}" * 8
            stream_once(api.port, text[:ARRIVING_CHARS], max_tokens=1)
            taken.append(turn)

    sender = Thread(target=send)
    sender.start()
    try:
        yield taken
    finally:
        is_over.set()
        sender.join()
