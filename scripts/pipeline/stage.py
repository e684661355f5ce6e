"""One rank of the pipeline, started by torchrun: its layers, and messages to its neighbours.

Rank 0 reads a job a line from its input and writes an answer a line to its output, both JSON. All
ranks hold the whole model, so that another split is put in place without loading anything.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils.logging import disable_progress_bar

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")  # nothing between embedding, layers and norm
TRIAL_STEPS = 3


@dataclass(frozen=True, slots=True)
class Job:
    """Decode with `layers[rank]` layers per rank, `in_flight` batches of `batch_size` users in the
    pipeline at once, for about `seconds`."""

    layers: list[int]
    in_flight: int
    batch_size: int
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description="One rank of a pipeline; see scripts.pipeline.")
    parser.add_argument("model")
    arguments = parser.parse_args()
    disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    stage = Stage(arguments.model)
    _write({"rank": stage.rank, "pid": os.getpid(), "num_layers": len(stage.all_layers)})
    with torch.inference_mode():
        for job in _jobs():
            tokens_per_s = stage.measure(job)
            if stage.rank == 0:
                _write({"tokens_per_s": tokens_per_s})
    dist.destroy_process_group()


class Stage:
    """The model, of which a rank runs its part. One thread."""

    def __init__(self, model: str) -> None:
        causal = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        if causal.config.model_type not in SUPPORTED:
            raise SystemExit(f"{causal.config.model_type} models cannot be cut: {SUPPORTED}")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.is_first, self.is_last = self.rank == 0, self.rank == self.world - 1
        self._config, self._decoder = causal.config, causal.model
        self.all_layers = list(causal.model.layers)
        self._norm, self._head = causal.model.norm, causal.lm_head
        self._decoder.norm = nn.Identity()

    def measure(self, job: Job) -> float:
        """Tokens/s of all users together: a few steps to see how long one takes, then as many as
        fill the time."""
        self._take(job.layers)
        step_s = self._decode(job, TRIAL_STEPS)
        steps = max(TRIAL_STEPS, round(job.seconds / step_s))
        return job.in_flight * job.batch_size / self._decode(job, steps)

    def _take(self, layers: list[int]) -> None:
        end = list(accumulate(layers))[self.rank]
        mine = self.all_layers[end - layers[self.rank] : end]
        for index, layer in enumerate(mine):
            layer.self_attn.layer_idx = index  # its place in the caches
        self._decoder.layers = nn.ModuleList(mine)

    def _decode(self, job: Job, steps: int) -> float:
        """Seconds per step, seen by the last rank once the pipeline is full."""
        caches = [DynamicCache(config=self._config) for _ in range(job.in_flight)]
        # Gloo's sends end when they are received: in a ring, waiting for each would be a deadlock.
        sent: list[dist.Work] = []
        start_s = 0.0
        for step in range(steps + 1):
            for cache in caches:
                hidden = self._run(self._receive(job.batch_size, step), cache)
                sent += self._send(hidden, is_final=step == steps)
            if step == 0:
                start_s = time.perf_counter()
        step_s = torch.tensor([(time.perf_counter() - start_s) / steps], dtype=torch.float64)
        for message in sent:
            message.wait()
        dist.broadcast(step_s, self.world - 1)
        return float(step_s)

    def _receive(self, batch_size: int, step: int) -> Tensor:
        """Hidden states of the rank before, [batch, 1, hidden]; the first embeds token ids."""
        if self.is_first:
            token_ids = torch.zeros(batch_size, 1, dtype=torch.int64)
            if step > 0:
                dist.recv(token_ids, self.world - 1)
            embedded: Tensor = self._decoder.embed_tokens(token_ids)
            return embedded
        hidden = torch.empty(batch_size, 1, self._config.hidden_size)
        dist.recv(hidden, self.rank - 1)
        return hidden

    def _run(self, hidden: Tensor, cache: DynamicCache) -> Tensor:
        if not self._decoder.layers:
            return hidden
        output = self._decoder(inputs_embeds=hidden, past_key_values=cache, use_cache=True)
        states: Tensor = output.last_hidden_state
        return states

    def _send(self, hidden: Tensor, is_final: bool) -> list[dist.Work]:
        """On to the next rank; the last samples greedily and gives the first its next tokens.
        What is on its way, to be waited for."""
        if not self.is_last:
            return [_sent(hidden, self.rank + 1)]
        token_ids = self._head(self._norm(hidden)).argmax(dim=-1)
        return [] if is_final else [_sent(token_ids, 0)]


def _sent(tensor: Tensor, rank: int) -> dist.Work:
    work = dist.isend(tensor, rank)
    assert work is not None
    return work


def _jobs() -> Iterator[Job]:
    """Yields on every rank the jobs that rank 0 reads, until its input ends."""
    while True:
        line = sys.stdin.readline() if dist.get_rank() == 0 else ""
        told = [line]
        dist.broadcast_object_list(told, src=0)
        if not told[0]:
            return
        yield Job(**json.loads(told[0]))


def _write(message: dict[str, object]) -> None:
    """In one call: the ranks share the output."""
    os.write(sys.stdout.fileno(), f"{json.dumps(message)}\n".encode())


if __name__ == "__main__":
    main()
