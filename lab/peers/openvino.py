"""OpenVINO GenAI as a peer: its continuous batching pipeline, without its server.

Runs in the environment that `install` made, on a model that OpenVINO's exporter compressed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]  # only in the peer's environment
import openvino_genai  # type: ignore[import-not-found]

from lab.peers.process import main


class OpenVino:
    """One model and its cache; see `process.Engine`."""

    def __init__(self, model: str, cache_gib: int, batch_tokens: int, threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = cache_gib
        scheduler.max_num_batched_tokens = batch_tokens
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
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


if __name__ == "__main__":
    about = {"version": openvino_genai.__version__, "system": openvino.__version__}
    main(about, OpenVino, cache_gib=4, batch_tokens=512, threads=1)
