"""Splits prompts into those for training heads, for choosing the tree, and for judging.

No prompt is in two splits.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any, Self

from common.files import write_whole

from .answers import Job
from .prompts import Prompt, distinct

CALIBRATION_SHARE = HELD_OUT_SHARE = 0.05
MIN_PROMPTS = 8
SAMPLED_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of a run: to train heads, to choose the tree (`calibration`), and to judge."""

    training: Sequence[Job]
    calibration: Sequence[Job]
    held_out: Sequence[Job]

    @property
    def all(self) -> list[Job]:
        """All jobs. The few to judge by come first, so that even a stopped run has them."""
        return [*self.held_out, *self.calibration, *self.training]

    @classmethod
    def of(
        cls, prompts: Iterable[Prompt], num_answers: int, seed: int, held_out: Sequence[Prompt] = ()
    ) -> Self:
        """Returns jobs for `num_answers` answers, several to a prompt if there are fewer prompts.

        `held_out` are prompts to judge by, by default a share of `prompts`. Half of the prompts for
        training are answered greedily, the others at a temperature. Raises ValueError if there are
        too few prompts to split.
        """
        pool = list(islice(distinct(prompts, held_out), num_answers))
        if len(pool) < MIN_PROMPTS:
            raise ValueError(
                f"{len(pool)} different prompts are too few to split, {MIN_PROMPTS} are needed; "
                "add prompts."
            )
        Random(seed).shuffle(pool)
        num_held_out = 0 if held_out else max(1, round(len(pool) * HELD_OUT_SHARE))
        num_judged = num_held_out + max(1, round(len(pool) * CALIBRATION_SHARE))
        judged = [Job(number, prompt) for number, prompt in enumerate(pool[:num_judged])]
        first = len(judged)
        held_out_jobs = [Job(first + number, prompt) for number, prompt in enumerate(held_out)]
        first += len(held_out_jobs)
        training = list(_training(pool[num_judged:], first, num_answers - num_judged))
        return cls(training, judged[num_held_out:], held_out_jobs or judged[:num_held_out])

    def only(self, numbers: Collection[int]) -> "Jobs":
        """Returns the jobs that have these numbers. Raises ValueError if a split has none."""
        parts = [
            [job for job in part if job.number in numbers]
            for part in (self.training, self.calibration, self.held_out)
        ]
        if not all(parts):
            raise ValueError("Too few answers to train on and to judge by; let more be decoded.")
        return Jobs(*parts)

    def save(self, path: Path, origin: dict[str, Any]) -> None:
        """Write the jobs to a file, with the options `origin` that they were made from."""
        content = {"origin": origin, **asdict(self)}
        write_whole(path, json.dumps(content))

    @classmethod
    def load(cls, path: Path, origin: dict[str, Any]) -> Self:
        """Returns the jobs in a file. Raises ValueError if they were made from other options."""
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("origin") != origin:
            raise ValueError(
                f"{path} is of a run with other options; remove its folder or name another --work."
            )
        return cls(**{split: [_job(entry) for entry in jobs] for split, jobs in content.items()})


def _training(prompts: Sequence[Prompt], first: int, count: int) -> Iterator[Job]:
    """Yields `count` jobs: for all prompts, then for all again, and so on. The first job of every
    other prompt is greedy; all other jobs have a temperature."""
    for turn, prompt in zip(range(count), cycle(prompts), strict=False):
        is_sampled = turn >= len(prompts) or turn % 2 == 1
        yield Job(first + turn, prompt, SAMPLED_TEMPERATURE if is_sampled else 0.0)


def _job(entry: dict[str, Any]) -> Job:
    return Job(entry["number"], tuple(entry["prompt"]), entry["temperature"])
