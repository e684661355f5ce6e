"""Measures time to first token of chats that share a long beginning: `make bench-prefix`.

Users come one after the other with the same system prompt of 1,000 tokens and their own questions;
then each sends a second turn. The table shows the first user, the others, and the second turns,
with and without `PREFIX_REUSE`. Nothing else may use the cores.
"""

from statistics import median

from lab.benches.serve.bench import (
    Workload,
    model_arguments,
    served_workload,
    stream_once,
    workloads,
)
from lab.kit.servers import ServedApi

USERS = 8
SYSTEM_CHARS = 1000  # the models of random weights have one token per character
SYSTEM = "Answer briefly, kindly and in the order in which you were asked. "
ANSWER_TOKENS = 16


def main() -> None:
    arguments = model_arguments(__doc__)
    print("| model | PREFIX_REUSE | TTFT first user ms | others p50 ms | second turns p50 ms |")
    print("|---|---|---|---|---|")
    for workload in workloads(arguments.models):
        for reuse in (True, False):
            print(row(workload, arguments.quantization, reuse), flush=True)


def row(workload: Workload, quantization: str, reuse: bool) -> str:
    settings = {"MAX_SEQ_LEN": 2048, "PREFIX_REUSE": reuse}
    with served_workload(workload, quantization, **settings) as api:
        stream_once(api.port, "warm up", max_tokens=4)
        system = (SYSTEM * SYSTEM_CHARS)[:SYSTEM_CHARS]
        texts = [f"{system} User {user} asks: what is next?" for user in range(USERS)]
        first, *others = [ttft_ms(api, text) for text in texts]
        again = [ttft_ms(api, f"{text} And after that?") for text in texts]
    return (
        f"| {workload.name} {quantization} | {str(reuse).lower()} "
        f"| {first:.0f} | {median(others):.0f} | {median(again):.0f} |"
    )


def ttft_ms(api: ServedApi, text: str) -> float:
    stream = stream_once(api.port, text, ANSWER_TOKENS)
    return 1000 * (stream.pieces_s[0] - stream.sent_s)
