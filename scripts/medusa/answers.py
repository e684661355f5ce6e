"""Collects the model's answers with the hidden state of each position, and keeps them in shards.

A position has the hidden state that drew a token, the token, and the model's likeliest token there.
The positions of an answer are in order; the first has the state of the prompt's last token.
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from tqdm import tqdm

from common.files import whole_file
from inference_api.request import SamplingParams
from inference_api.runner import Draw, ModelRunner, RowResult, RowStep, place_own_pages

from .base import load_runner

PREFILL_CHUNK_TOKENS = 256
ANSWERS_PER_SHARD = 64


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt to answer. Its number is unique among the jobs of a run."""

    number: int
    prompt: tuple[int, ...]
    temperature: float = 0.0

    @property
    def sampling(self) -> SamplingParams:
        """Sampling parameters that report the likeliest token, unless greedy, which draws it."""
        num_logprobs = 1 if self.temperature else None
        return SamplingParams(self.temperature, seed=self.number, num_logprobs=num_logprobs)


@dataclass(slots=True)
class TrainingAnswer:
    """The answer to a job, as far as it is."""

    job: Job
    prefilled: int = 0
    hidden: list[Tensor] = field(default_factory=list)  # [hidden size] float16 of each position
    drawn_ids: list[int] = field(default_factory=list)
    likeliest: list[tuple[int, float]] = field(default_factory=list)
    """The likeliest tokens with their log probabilities; empty if the job is greedy."""

    def next_step(self, row: int) -> RowStep:
        prompt = self.job.prompt
        chunk = prompt[self.prefilled : len(prompt) - 1][:PREFILL_CHUNK_TOKENS]
        if chunk:
            return RowStep(row, self.prefilled, chunk)
        token = self.drawn_ids[-1] if self.drawn_ids else prompt[-1]
        draw = Draw(self.job.sampling, prompt, self.drawn_ids)
        start = len(prompt) - 1 + len(self.drawn_ids)
        return RowStep(row, start, (token,), (draw,), wants_hidden=True)

    def take(self, step: RowStep, result: RowResult) -> None:
        if not step.draws:
            self.prefilled += len(step.token_ids)
            return
        (drawn,) = result.drawn
        assert result.hidden is not None
        self.hidden.append(torch.from_numpy(result.hidden[0]).half())
        self.drawn_ids.append(drawn.token_id)
        if drawn.logprobs is not None:
            self.likeliest.append(drawn.logprobs.top[0])

    @property
    def likeliest_ids(self) -> list[int]:
        return [token for token, _ in self.likeliest] or self.drawn_ids


def answers_to(
    jobs: Iterable[Job], runner: ModelRunner, max_tokens: int, stop_ids: Collection[int]
) -> Iterator[TrainingAnswer]:
    """Yields answers in the order in which they end, keeping all user rows busy. Stop tokens are
    part of an answer. Each prompt with `max_tokens` must fit into a row."""
    place_own_pages(runner)
    waiting = iter(jobs)
    free = list(range(runner.max_rows))
    busy: dict[int, TrainingAnswer] = {}
    while True:
        while free and (job := next(waiting, None)) is not None:
            busy[free.pop()] = TrainingAnswer(job)
        if not busy:
            return
        steps = [each.next_step(row) for row, each in busy.items()]
        for step, result in zip(steps, runner.step(steps), strict=True):
            each = busy[step.row]
            each.take(step, result)
            ids = each.drawn_ids
            if len(ids) == max_tokens or (ids and ids[-1] in stop_ids):
                del busy[step.row]
                free.append(step.row)
                yield each


class Shards:
    """Answers in files of a folder, so that a stopped run can continue."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def numbers(self) -> set[int]:
        """Returns the numbers of the answered jobs."""
        return {n for file in self._files() for n in load_file(file)["numbers"].tolist()}

    def save(self, answers: Iterable[TrainingAnswer]) -> Generator[TrainingAnswer, None, None]:
        """Yields the answers, and writes them to shards on the way."""
        pending: list[TrainingAnswer] = []
        try:
            for answer in answers:
                pending.append(answer)
                if len(pending) == ANSWERS_PER_SHARD:
                    self._write(pending)
                    pending.clear()
                yield answer
        finally:
            if pending:
                self._write(pending)

    def drawn(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Returns the tokens of the answers to these jobs, in the order of the jobs."""
        positions = self.positions(jobs)
        return [ids.tolist() for ids in positions.drawn_ids.split(positions.lengths.tolist())]

    def positions(self, jobs: Sequence[Job]) -> "Positions":
        """Returns the positions of the answers to these jobs, in the order of the jobs."""
        found: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        for file in self._files():
            shard = load_file(file)
            sizes = shard["lengths"].tolist()
            names = ("hidden", "drawn_ids", "likeliest_ids")
            parts = zip(*(shard[name].split(sizes) for name in names), strict=True)
            found |= dict(zip(shard["numbers"].tolist(), parts, strict=True))
        chosen = [found[job.number] for job in jobs]
        hidden, drawn_ids, likeliest_ids = (torch.cat(parts) for parts in zip(*chosen, strict=True))
        lengths = torch.tensor([len(part[0]) for part in chosen])
        return Positions(hidden, drawn_ids.long(), likeliest_ids.long(), lengths)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.safetensors"))

    def _write(self, answers: Sequence[TrainingAnswer]) -> None:
        tensors = {
            "hidden": torch.stack([state for answer in answers for state in answer.hidden]),
            "drawn_ids": _ids(answer.drawn_ids for answer in answers),
            "likeliest_ids": _ids(answer.likeliest_ids for answer in answers),
            "numbers": torch.tensor([answer.job.number for answer in answers]),
            "lengths": torch.tensor([len(answer.drawn_ids) for answer in answers]),
        }
        with whole_file(self._folder / f"{answers[0].job.number:06}.safetensors") as draft:
            save_file(tensors, draft)


def _ids(lists: Iterable[Sequence[int]]) -> Tensor:
    return torch.tensor([token for ids in lists for token in ids], dtype=torch.int32)


IGNORED = -100  # a label that losses ignore, by torch's default


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of several answers, one answer after the other."""

    hidden: Tensor  # [positions, hidden size] float16
    drawn_ids: Tensor  # [positions]
    likeliest_ids: Tensor  # [positions]
    lengths: Tensor  # [answers]

    def __len__(self) -> int:
        return len(self.drawn_ids)

    def labels(self, num_heads: int) -> Tensor:
        """Returns labels [positions, heads]: for head k, the likeliest token k + 1 positions later.

        It is IGNORED after the answer's end, and after a drawn token that was not the likeliest,
        because heads do not see which token was drawn.
        """
        is_likeliest = self.drawn_ids == self.likeliest_ids
        return self._ahead(self.likeliest_ids, num_heads, is_likeliest)

    def continuations(self, num_heads: int) -> Tensor:
        """Returns the tokens [positions, heads] that were drawn where `labels` has the likeliest
        ones, up to the answer's end."""
        return self._ahead(self.drawn_ids, num_heads, torch.ones(len(self), dtype=torch.bool))

    def _ahead(self, ids: Tensor, num_heads: int, is_followed: Tensor) -> Tensor:
        ends = self.lengths.cumsum(0).repeat_interleave(self.lengths)
        places = torch.arange(len(self))
        counts = torch.ones(len(self), dtype=torch.bool)
        columns = []
        for k in range(num_heads):
            target = places + 1 + k
            counts = counts & (target < ends) & is_followed[(target - 1).clamp(max=len(self) - 1)]
            column = ids[target.clamp(max=len(self) - 1)]
            columns.append(torch.where(counts, column, IGNORED))
        return torch.stack(columns, dim=1)


@dataclass(frozen=True, slots=True)
class Collecting:
    """How to answer: with up to `max_tokens` tokens, or up to one of `stop_ids`.

    Of several processes, each has one thread for its steps, because threads that share a step wait
    for each other, most of all on a machine that is also busy with other work.
    """

    model: str
    device: str
    max_tokens: int
    stop_ids: Collection[int]
    num_processes: int = 1


def collect(how: Collecting, jobs: Sequence[Job], folder: Path) -> Shards:
    """Answers the jobs that the folder's shards lack. Returns the shards."""
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
    runner = load_runner(how.model, how.device, how.max_tokens, num_threads)
    part_jobs = jobs[part :: how.num_processes]
    answers = Shards(folder).save(answers_to(part_jobs, runner, how.max_tokens, how.stop_ids))
    with tqdm(total=len(part_jobs), unit="answer", desc=folder.name, position=part) as bar:
        for _ in answers:
            bar.update()
