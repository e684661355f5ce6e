"""Splits prompts into those for training, for the tree, and for judging.

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
    """The jobs of a run, by purpose."""

    training: Sequence[Job]
    calibration: Sequence[Job]
    held_out: Sequence[Job]

    @property
    def all(self) -> list[Job]:
        """Returns all jobs. The few to judge by come first, as every stopped run needs them."""
        return [*self.held_out, *self.calibration, *self.training]

    @classmethod
    def of(
        cls, prompts: Iterable[Prompt], num_answers: int, seed: int, held_out: Sequence[Prompt] = ()
    ) -> Self:
        """`num_answers` to as many of `prompts`, or to each several times where these are fewer.

        `held_out` are prompts to judge by; without them it is a share of the others. Training has
        half of its prompts answered greedily and half at a temperature. Raises ValueError where
        there are too few prompts to split.
        """
        others = list(islice(distinct(prompts, held_out), num_answers))
        if len(others) < MIN_PROMPTS:
            raise ValueError(
                f"{len(others)} different prompts are too few to split, {MIN_PROMPTS} are needed; "
                "add prompts."
            )
        Random(seed).shuffle(others)
        num_held_out = 0 if held_out else max(1, round(len(others) * HELD_OUT_SHARE))
        num_judged = num_held_out + max(1, round(len(others) * CALIBRATION_SHARE))
        judged = [Job(number, prompt) for number, prompt in enumerate(others[:num_judged])]
        first = len(judged)
        given = [Job(first + number, prompt) for number, prompt in enumerate(held_out)]
        first += len(given)
        training = list(_training(others[num_judged:], first, num_answers - num_judged))
        return cls(training, judged[num_held_out:], given or judged[:num_held_out])

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
        """`origin` tells what they were made of; see `load`."""
        content = {"origin": origin, **asdict(self)}
        write_whole(path, json.dumps(content))

    @classmethod
    def load(cls, path: Path, origin: dict[str, Any]) -> Self:
        """Raises ValueError when they were made of something else than `origin`."""
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("origin") != origin:
            raise ValueError(
                f"{path} is of a run with other options; remove its folder or name another --work."
            )
        return cls(**{split: [_job(entry) for entry in jobs] for split, jobs in content.items()})


def _training(prompts: Sequence[Prompt], first: int, count: int) -> Iterator[Job]:
    """Yields each prompt once before any twice; odd turns and repetitions have a temperature."""
    for turn, prompt in zip(range(count), cycle(prompts), strict=False):
        is_sampled = turn >= len(prompts) or turn % 2 == 1
        yield Job(first + turn, prompt, SAMPLED_TEMPERATURE if is_sampled else 0.0)


def _job(entry: dict[str, Any]) -> Job:
    return Job(entry["number"], tuple(entry["prompt"]), entry["temperature"])
