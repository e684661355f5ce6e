"""Lets the model answer all jobs, by several processes if the kernels decode.

A process has one thread for its steps: threads that share a step's work wait for each other, which
costs most on a machine that does other things too.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.multiprocessing.spawn import spawn
from tqdm import tqdm

from .answers import Job, Shards, answers_to
from .base import Base


@dataclass(frozen=True, slots=True)
class Collecting:
    """How to answer: at most `max_tokens`, up to one of `stop_ids`."""

    model: str
    device: str
    max_tokens: int
    stop_ids: Collection[int]
    num_processes: int = 1


def collect(how: Collecting, jobs: Sequence[Job], folder: Path) -> Shards:
    """Answer the jobs that the folder's shards lack."""
    shards = Shards(folder)
    answered = shards.numbers()
    missing = [job for job in jobs if job.number not in answered]
    if missing and how.num_processes == 1:
        _collect_part(0, how, missing, folder)
    elif missing:
        spawn(_collect_part, (how, missing, folder), nprocs=how.num_processes)
    return shards


def _collect_part(part: int, how: Collecting, jobs: Sequence[Job], folder: Path) -> None:
    num_threads = None if how.num_processes == 1 else 1
    runner = Base.load(how.model, how.device, how.max_tokens, num_threads).runner
    own = jobs[part :: how.num_processes]
    answers = Shards(folder).save(answers_to(own, runner, how.max_tokens, how.stop_ids))
    with tqdm(total=len(own), unit="answer", desc=folder.name, position=part) as bar:
        for _ in answers:
            bar.update()
