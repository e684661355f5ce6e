"""Whether two ranks on one card answer as one process does.

Exits with 1 where they do not. The embedded model, in float32.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from inference_api.pipeline.ranks import local_rank
from lab.kit.servers import ServedApi, environment, free_port, kill_group, run_module, served

SPLIT = (2, 3)
ANSWER_TOKENS, TIMES = 64, 3
WAYS = ({"temperature": 0}, {"temperature": 1, "seed": 7})
PROMPTS = ("Once upon a time", "The fox said to the owl: " * 100)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    settings = {"DEVICE": parser.parse_args().device, "DTYPE": "float32"}
    with TemporaryDirectory() as name:
        folder = Path(name)
        with served(folder / "alone", **settings) as api:
            expected = answers(api, "one process")
        with ExitStack() as stack:
            api = start_ranks(stack, folder, settings)
            texts = answers(api, f"ranks of {SPLIT} layers")
    print("answers are", "equal" if texts == expected else "different")
    return 0 if texts == expected else 1


def start_ranks(stack: ExitStack, folder: Path, settings: dict[str, str]) -> ServedApi:
    """Returns the API, once it is ready; the ranks end with `stack`."""
    meeting_port, api_port = free_port(), free_port()
    settings = settings | {"SPLIT": ",".join(map(str, SPLIT)), "SERVICE_PORT": str(api_port)}
    processes = []
    for rank in range(len(SPLIT)):
        own = environment(**settings, **local_rank(rank, len(SPLIT), meeting_port))
        log: BinaryIO = stack.enter_context((folder / f"rank {rank}").open("wb"))
        processes.append(run_module(["inference_api.pipeline"], log, own))
        stack.callback(kill_group, processes[-1])
    api = ServedApi(processes[0], api_port, folder / "rank 0")
    api.wait_until_ready()
    return api


def answers(api: ServedApi, whose: str) -> Sequence[str]:
    """The last time of TIMES, whose seconds are printed."""
    for _ in range(TIMES):
        began_s, texts = time.perf_counter(), []
        for prompt in PROMPTS:
            for way in WAYS:
                body = {"model": "hearth-tiny", "prompt": prompt, "max_tokens": ANSWER_TOKENS}
                answer = api.post("/v1/completions", ignore_eos=True, **body, **way)
                texts.append(answer.json()["choices"][0]["text"])
        seconds = time.perf_counter() - began_s
    num_tokens = len(texts) * ANSWER_TOKENS
    print(f"{whose}: {num_tokens / seconds:.0f} tokens/s, one after the other", flush=True)
    return texts


if __name__ == "__main__":
    sys.exit(main())
