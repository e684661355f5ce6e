"""OpenVINO GenAI as a peer: its continuous batching pipeline, without its server.

Runs in the environment that `install` made, on a model that its own exporter compressed.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]  # only in the peer's environment
import openvino_genai  # type: ignore[import-not-found]

from lab.peers.process import serve


class OpenVino:
    """One model and its cache; see `peer_loop.Engine`."""

    def __init__(self, folder: str, cache_gib: int, batch_tokens: int, threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = cache_gib
        scheduler.max_num_batched_tokens = batch_tokens
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            folder, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self._num_requests = 0
        self._running: dict[int, Any] = {}  # handles by user

    def add(self, user: int, prompt: Sequence[int], max_tokens: int) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        ids = openvino.Tensor(np.asarray([prompt], np.int64))
        self._running[user] = self._pipeline.add_request(self._num_requests, ids, config)
        self._num_requests += 1

    def step(self) -> tuple[int, list[int]]:
        self._pipeline.step()
        num_new = 0
        finished = []
        for user, handle in list(self._running.items()):
            while handle.can_read():
                num_new += sum(len(output.generated_ids) for output in handle.read().values())
            if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                finished.append(user)
                del self._running[user]
        return num_new, finished


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--cache-gib", type=int, default=4)
    parser.add_argument("--batch-tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    about = {"version": openvino_genai.__version__, "system": openvino.__version__}
    if arguments.model is None:
        print(about["version"])
        return
    serve(lambda: _engine(arguments), about)


def _engine(arguments: argparse.Namespace) -> OpenVino:
    return OpenVino(arguments.model, arguments.cache_gib, arguments.batch_tokens, arguments.threads)


if __name__ == "__main__":
    main()
