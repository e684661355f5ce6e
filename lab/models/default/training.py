"""The training loop: two single-threaded processes that share the gradients of each step.

What a step reads depends only on its number, so a run that is stopped continues from its last
checkpoint as if it had never been stopped. The learning rate follows the share of tokens seen.
"""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from common.files import whole_file

from .model import ModelShape, TrainableLlama
from .optimizer import Optimizer, sum_over_processes

_IGNORED = -100
_WARMUP_STEPS = 60
_DECAY_START = 0.4  # share of the tokens after which the learning rate falls, linearly
_FINAL_LR_SCALE = 0.01
_LONG_STEP_EVERY = 20  # one step in twenty reads long windows
_LOG_EVERY = 20


def usual_dtype() -> str:
    """float32 where products of bfloat16 are emulated and take several times as long."""
    capability = torch.backends.cpu.get_cpu_capability()
    return "bfloat16" if capability.startswith("AVX512") else "float32"


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """`work` holds the windows, the checkpoint and the log."""

    work: Path
    tokens: int = 24_000_000
    tokens_per_step: int = 8192
    seed: int = 1
    num_processes: int = 2
    peak_lr_scale: float = 1.0  # of the optimizer's rates; lower to go on from trained weights
    dtype: str = field(default_factory=usual_dtype)  # of products
    compile: bool = True
    checkpoint_every_steps: int = 200

    @property
    def steps(self) -> int:
        return self.tokens // self.tokens_per_step


class WindowSource:
    """Windows of one length in a shuffled order that is fixed by the seed."""

    def __init__(self, work: Path, name: str, seed: int) -> None:
        self._ids = np.load(work / f"{name}_ids.npy", mmap_mode="r")
        self._is_target = np.load(work / f"{name}_is_target.npy", mmap_mode="r")
        self._seed = seed
        self._epoch = -1
        self._order = np.arange(0)

    @property
    def length(self) -> int:
        return int(self._ids.shape[1]) - 1

    def batch(self, number: int, size: int, part: int, num_parts: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of this process for the batch of the given number."""
        first = number * size
        picks = [self._pick(first + i) for i in range(part, size, num_parts)]
        return self.windows(picks)

    def windows(self, picks: list[int]) -> tuple[Tensor, Tensor]:
        ids = torch.from_numpy(self._ids[picks].astype(np.int64))
        is_target = torch.from_numpy(self._is_target[picks])
        labels = torch.where(is_target, ids, _IGNORED)
        return ids[:, :-1].contiguous(), labels[:, 1:].contiguous()

    def _pick(self, index: int) -> int:
        epoch, position = divmod(index, len(self._ids))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng((self._seed, epoch)).permutation(len(self._ids))
        return int(self._order[position])


def lr_scale(step: int, steps: int) -> float:
    share = step / steps
    warmup = min(1.0, (step + 1) / _WARMUP_STEPS)
    decay = 1.0 if share < _DECAY_START else (1.0 - share) / (1.0 - _DECAY_START)
    return warmup * max(_FINAL_LR_SCALE, decay)


class Trainer:
    """One process of the run; process 0 also logs and writes checkpoints."""

    def __init__(self, plan: TrainingPlan, rank: int) -> None:
        torch.manual_seed(plan.seed)
        self._plan = plan
        self._rank = rank
        self._short = WindowSource(plan.work, "short", plan.seed)
        self._long = WindowSource(plan.work, "long", plan.seed)
        self._validation = WindowSource(plan.work, "validation", plan.seed)
        dtype = getattr(torch, plan.dtype)
        self._model = TrainableLlama(ModelShape(), dtype)
        self._optimizer = Optimizer(self._model, dtype)
        self._loss = (
            torch.compile(self._model.loss, dynamic=False) if plan.compile else self._model.loss
        )
        self._step = 0
        self._seconds = 0.0
        self._resume()

    def run(self) -> None:
        started = time.monotonic()
        seconds_before = self._seconds
        losses: list[float] = []
        while self._step < self._plan.steps:
            losses.append(self._train_step())
            self._seconds = seconds_before + time.monotonic() - started
            if self._step % _LOG_EVERY == 0:
                self._log(loss=round(sum(losses) / len(losses), 4))
                losses.clear()
            if self._step % self._plan.checkpoint_every_steps == 0:
                self._save()
        self._log(validation_loss=round(self.validation_loss(), 4))
        self._save()

    def _train_step(self) -> float:
        is_long = self._step % _LONG_STEP_EVERY == _LONG_STEP_EVERY - 1
        source = self._long if is_long else self._short
        number = self._step // _LONG_STEP_EVERY if is_long else self._step
        size = self._plan.tokens_per_step // source.length
        ids, labels = source.batch(number, size, self._rank, self._plan.num_processes)
        loss = self._loss(ids, labels)
        torch.autograd.backward(loss)
        scale = self._plan.peak_lr_scale * lr_scale(self._step, self._plan.steps)
        self._optimizer.step(scale)
        self._step += 1
        return float(loss.item())

    @torch.no_grad()
    def validation_loss(self, num_windows: int = 64) -> float:
        """Mean loss per answer token on documents in held-out wordings."""
        picks = range(self._rank, num_windows, dist.get_world_size())
        total = torch.zeros(2)  # summed loss, number of answer tokens
        for pick in picks:
            ids, labels = self._validation.windows([pick])
            num_targets = (labels != _IGNORED).sum()
            total += torch.stack((self._model.loss(ids, labels) * num_targets, num_targets))
        sum_over_processes([total])
        return float(total[0] / total[1])

    def _log(self, **figures: float) -> None:
        if self._rank:
            return
        tokens = self._step * self._plan.tokens_per_step
        entry = {"step": self._step, "tokens": tokens, "seconds": round(self._seconds, 1)} | figures
        with (self._plan.work / "training.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")

    def _save(self) -> None:
        if self._rank == 0:
            save_checkpoint(
                self._plan.work, self._model, self._optimizer, self._step, self._seconds
            )
        dist.barrier()

    def _resume(self) -> None:
        path = self._plan.work / "checkpoint.pt"
        if path.exists():
            state: dict[str, Any] = torch.load(path)
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            self._step, self._seconds = state["step"], state["seconds"]


def save_checkpoint(
    work: Path,
    model: TrainableLlama,
    optimizer: Optimizer,
    step: int = 0,
    seconds: float = 0.0,
) -> None:
    """Replaces what training goes on from."""
    state = {
        "shape": asdict(model.shape),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
        "seconds": seconds,
    }
    with whole_file(work / "checkpoint.pt") as draft:
        torch.save(state, draft)


def start_from(model_dir: Path, work: Path) -> None:
    """Training in `work` begins with the weights of this model."""
    model = TrainableLlama(ModelShape(), torch.float32)
    model.load_state_dict(load_file(model_dir / "model.safetensors"))
    save_checkpoint(work, model, Optimizer(model, torch.float32))


def _run_process(rank: int, plan: TrainingPlan) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{(plan.work / 'rendezvous').resolve()}",
        rank=rank,
        world_size=plan.num_processes,
    )
    Trainer(plan, rank).run()
    dist.destroy_process_group()


def train(plan: TrainingPlan) -> None:
    """Trains to the planned number of tokens; goes on from the work folder's checkpoint if any."""
    (plan.work / "rendezvous").unlink(missing_ok=True)
    spawn(_run_process, (plan,), nprocs=plan.num_processes)
