"""Trains heads on the collected positions alone, without running the model.

The positions of a step depend only on its number, so a run that was stopped continues from its last
checkpoint as if it had never been stopped.
"""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor
from tqdm import tqdm

from common.files import whole_file

from .answers import IGNORED
from .heads import Heads

LATER_HEAD_WEIGHT = 0.8  # weight of a head's loss, relative to the head before it
WARM_UP_STEPS = 50
FINAL_LR_SCALE = 0.05
TIMED_STEPS = 10
CHECKPOINT_S = 60.0
LOG_EVERY_STEPS = 50


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The options of a training. `work` is the folder for checkpoint and log. Without `steps`, it
    runs for about `minutes`: the first steps are timed."""

    work: Path
    steps: int | None = None
    minutes: float = 20.0
    positions_per_step: int = 512
    block_lr: float = 2e-3
    output_lr: float = 1e-3
    seed: int = 1
    device: str = "cpu"

    @property
    def checkpoint(self) -> Path:
        return self.work / "checkpoint.pt"


def lr_scale(step: int, steps: int) -> float:
    """Returns the factor of the learning rate. It rises to 1 during the warm-up, then falls along a
    cosine."""
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    share = (step - WARM_UP_STEPS) / max(1, steps - WARM_UP_STEPS)
    return FINAL_LR_SCALE + (1 - FINAL_LR_SCALE) * (1 + math.cos(math.pi * share)) / 2


class Trainer:
    """Trains heads. It continues from the plan's checkpoint, if there is one. `step` is the number
    of steps so far, and `seconds` their time, with those of earlier runs."""

    def __init__(self, plan: TrainingPlan, heads: Heads, hidden: Tensor, labels: Tensor) -> None:
        """`hidden` are states [n, hidden size], and `labels` the heads' [n, heads]: indices among
        the tokens that can be named, or IGNORED."""
        self.plan = plan
        self._heads = heads.to(plan.device)
        is_used = (labels != IGNORED).any(dim=1)
        self._hidden, self._labels = hidden[is_used], labels[is_used]
        self._lrs = (plan.block_lr, plan.output_lr)
        groups = ([heads.weight, heads.bias], [heads.outputs])
        self._optimizer = torch.optim.AdamW(
            [{"params": group, "lr": lr} for group, lr in zip(groups, self._lrs, strict=True)],
            betas=(0.9, 0.98),
            weight_decay=0.0,
        )
        self.step = 0
        self._num_steps = plan.steps
        self.seconds = 0.0
        self._epoch = -1
        self._order = np.arange(0)
        plan.work.mkdir(parents=True, exist_ok=True)
        if plan.checkpoint.exists():
            self._resume()

    @property
    def num_positions_done(self) -> int:
        return self.step * self.plan.positions_per_step

    def run(self) -> None:
        """Train up to the last step. If it is interrupted, it saves a checkpoint."""
        saved_s = time.monotonic()
        started_s = saved_s - self.seconds
        with tqdm(total=self._num_steps, initial=self.step, unit="step", desc="training") as bar:
            try:
                while self._num_steps is None or self.step < self._num_steps:
                    losses = self._train_step()
                    self.seconds = time.monotonic() - started_s
                    if self._num_steps is None and self.step == TIMED_STEPS:
                        wanted = 60 * self.plan.minutes * self.step / self.seconds
                        bar.total = self._num_steps = max(TIMED_STEPS, round(wanted))
                    bar.update()
                    if self.step % LOG_EVERY_STEPS == 0:
                        self._log(losses)
                        bar.set_postfix(loss=f"{losses[0]:.3f}")
                    if time.monotonic() - saved_s > CHECKPOINT_S:
                        self._save()
                        saved_s = time.monotonic()
            finally:
                self._save()

    def _train_step(self) -> list[float]:
        """Run a step. Returns the loss of each head."""
        hidden, labels = self._batch()
        scale = lr_scale(self.step, self._num_steps or WARM_UP_STEPS)
        for group, lr in zip(self._optimizer.param_groups, self._lrs, strict=True):
            group["lr"] = lr * scale
        losses = []
        for k in range(self._heads.num_heads):
            # One head at a time, because logits take the most memory.
            loss = head_loss(self._heads, hidden, labels[:, k], k)
            torch.autograd.backward(LATER_HEAD_WEIGHT**k * loss)
            losses.append(float(loss.detach()))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return losses

    def _batch(self) -> tuple[Tensor, Tensor]:
        """Returns the next step's states and labels. The seed fixes the order of each epoch."""
        count = min(self.plan.positions_per_step, len(self._hidden))
        epoch, batch = divmod(self.step, len(self._hidden) // count)
        if epoch != self._epoch:
            self._epoch = epoch
            rng = np.random.default_rng((self.plan.seed, epoch))
            self._order = rng.permutation(len(self._hidden))
        picks = torch.from_numpy(self._order[batch * count : (batch + 1) * count])
        device = self.plan.device
        return self._hidden[picks].to(device, torch.float32), self._labels[picks].to(device)

    def _log(self, losses: list[float]) -> None:
        entry = {"step": self.step, "seconds": round(self.seconds, 1)}
        entry |= {f"loss_{k}": round(loss, 4) for k, loss in enumerate(losses)}
        with (self.plan.work / "training.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")

    def _save(self) -> None:
        state = {
            "heads": self._heads.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "num_steps": self._num_steps,
            "seconds": self.seconds,
        }
        with whole_file(self.plan.checkpoint) as draft:
            torch.save(state, draft)

    def _resume(self) -> None:
        state: dict[str, Any] = torch.load(self.plan.checkpoint, weights_only=True)
        self._heads.load_state_dict(state["heads"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
        self._num_steps = self.plan.steps or state["num_steps"]


def head_loss(heads: Heads, hidden: Tensor, labels: Tensor, head: int) -> Tensor:
    """Returns one head's mean cross entropy over positions with a label; 0 if none has."""
    is_labelled = labels != IGNORED
    if not is_labelled.any():
        return 0.0 * heads.weight.sum()
    return F.cross_entropy(heads(hidden[is_labelled], head), labels[is_labelled])
