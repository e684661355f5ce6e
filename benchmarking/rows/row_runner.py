"""Runs one row: makes its prompts, sends the load and records the answers.

Errors of single requests are recorded. An error that prevents the whole row raises RowRefused.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from random import Random
from statistics import fmean
from threading import Event
from typing import Any

from benchmarking.errors import RowRefused, TargetUnusable
from benchmarking.load.generator import LoadJob, LoadResult, Progress
from benchmarking.load.process import run_load
from benchmarking.load.prompts import TEXTS, PromptMaker, image_url
from benchmarking.load.schedule import due_times_s, lengths
from benchmarking.load.targets import Endpoint, Prompt
from benchmarking.load.tokenizers import Tokenizer, tokenizer_for
from benchmarking.load.usage import server_usage
from benchmarking.load.user_prompts import read_prompts
from benchmarking.records import RequestRecord, RowRecord, Workload
from benchmarking.results.result_files import file_stem
from benchmarking.rows.config import RowOptions
from benchmarking.rows.model_configs import MIN_INPUT_TOKENS

MAX_PROMPT_TOKENS = 2**28  # bounds memory, because all prompts are made before the first is sent

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """The results of a row. `texts` has (prompt, completion) of each completed measured request."""

    row: RowRecord
    records: tuple[RequestRecord, ...]
    texts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class RowRunner:
    """Runs rows against one target. Immutable; any thread may use it. The clock of the run starts
    with it, at `origin_s` of `time.monotonic`, which is `started_at`."""

    target: Endpoint
    options: RowOptions
    origin_s: float = field(default_factory=time.monotonic)
    started_at: datetime = field(default_factory=lambda: datetime.now().astimezone())

    def run(self, number: int, load: Workload, stop: Event, on_progress: OnProgress) -> RowOutcome:
        """Runs a row. Once `stop` is set, it soon returns what it has. Raises RowRefused."""
        tokenizer = tokenizer_for(self.options.tokenizer, self.target, load.model)
        user_prompts = read_prompts(Path(load.prompts_path), tokenizer) if load.prompts_path else []
        if user_prompts:
            mean_tokens = round(fmean(prompt.num_tokens for prompt in user_prompts))
            load = replace(load, input_tokens=mean_tokens, num_requests=len(user_prompts))
        num_warmup = self._num_warmup(load)
        num_generated = num_warmup + load.num_requests - len(user_prompts)
        if num_generated * load.input_tokens > MAX_PROMPT_TOKENS:
            raise RowRefused(
                f"{num_generated} prompts of {load.input_tokens} tokens; a row has at most "
                f"{MAX_PROMPT_TOKENS} prompt tokens: ask for fewer or shorter ones"
            )
        prompts = [*self._generated_prompts(number, load, num_generated, tokenizer), *user_prompts]
        self._check_fit(load, max(prompts, key=lambda prompt: prompt.num_tokens), tokenizer)
        with_image = [prompt for prompt in prompts if prompt.image_url is not None]
        if with_image:
            self._check_images(load, with_image[0], stop)
        result = run_load(self._job(number, load, prompts), on_progress, stop)
        for exchange in result.exchanges:
            if error := exchange.error:
                message = self.target.without_secrets(error.message)
                exchange.error = replace(error, message=message)
        records = _records(number, load, prompts, num_warmup, result, tokenizer)
        row = _row(load, records, result, stop.is_set())
        return RowOutcome(row, records, _texts(prompts, num_warmup, result))

    def _num_warmup(self, load: Workload) -> int:
        """Returns `warmup_requests`, by default one per user, or those of a second."""
        if self.options.warmup_requests is not None:
            return self.options.warmup_requests
        return min(load.num_requests, load.concurrency or math.ceil(load.qps or 0))

    def _generated_prompts(
        self, number: int, load: Workload, count: int, tokenizer: Tokenizer
    ) -> list[Prompt]:
        num_tokens = load.input_tokens
        if load.prompts_path:  # these prompts only warm up; the user's own may be very short
            num_tokens = max(num_tokens, MIN_INPUT_TOKENS)
        length_rng = Random(f"{self.options.seed} {number} prompts")
        tokens_of = lengths(count, num_tokens, load.input_scv, length_rng)
        if load.input_scv:  # a prompt needs room for its own prefix and text to choose from
            tokens_of = [max(tokens, MIN_INPUT_TOKENS) for tokens in tokens_of]
        maker = PromptMaker(tokenizer)
        image_rng = Random(f"{self.options.seed} {number} image")
        image = None if load.image_size == "na" else image_url(load.image_size, image_rng)
        names = [name for name in TEXTS if name != "default"]
        prompts: list[Prompt] = []
        for index, num_tokens in enumerate(tokens_of):
            rng = Random(f"{self.options.seed} {number} {index}")
            name = rng.choice(names) if self.options.use_multiple_prompts else "default"
            if self.options.unique_prefix:
                prefix = f"Request {number}-{index}-{rng.randbytes(3).hex()}."
                text = maker.make(name, num_tokens, prefix, rng)
            else:
                same = next((prompt.text for prompt in prompts if prompt.name == name), None)
                text = same or maker.make(name, num_tokens, "", rng)
            prompts.append(Prompt(name, text, num_tokens, image))
        return prompts

    def _check_fit(self, load: Workload, prompt: Prompt, tokenizer: Tokenizer) -> None:
        left = tokenizer.context_left(prompt.text)
        if left is not None and load.output_tokens > left:
            raise RowRefused(
                f"a prompt of {prompt.num_tokens} tokens leaves room for {left} tokens of answer "
                f"in {load.model}; shorten it or lower output_tokens={load.output_tokens}"
            )

    def _check_images(self, load: Workload, prompt: Prompt, stop: Event) -> None:
        probe = replace(load, num_requests=1, output_tokens=1, concurrency=1, qps=None)
        # Another text, lest caches have the prompt when it is measured.
        question = replace(prompt, text="What is this?")
        result = run_load(self._job(0, probe, [question]), lambda _: None, stop)
        error = result.exchanges[0].error if result.exchanges else None
        if error is not None and (error.code.startswith("4") or error.code == "ignored"):
            option, remedy = f"multimodal_img_size={load.image_size}", "set it to na"
            if load.prompts_path is not None:
                option, remedy = "image_path", f"leave it out of {load.prompts_path}"
            raise RowRefused(
                f"{option}: {load.model} does not take images (the server answered {error.code}: "
                f"{error.message}); {remedy}"
            )

    def _job(self, number: int, load: Workload, prompts: Sequence[Prompt]) -> LoadJob:
        due_s: list[float] = []
        if load.qps and not load.concurrency:
            rng = Random(f"{self.options.seed} {number} schedule")
            spaced = load.qps_distribution
            due_s = due_times_s(len(prompts), load.qps, spaced, rng, load.arrival_scv)
        request = self.target.request
        length_rng = Random(f"{self.options.seed} {number} answers")
        max_tokens = lengths(len(prompts), load.output_tokens, load.output_scv, length_rng)
        pairs = zip(prompts, max_tokens, strict=True)
        return LoadJob(
            address=self.target.address,
            requests=tuple(request(load.model, prompt, tokens) for prompt, tokens in pairs),
            answer=self.target.answer,
            origin_s=self.origin_s,
            row_timeout_s=self.options.timeout,
            request_timeout_s=self.options.request_timeout,
            concurrency=load.concurrency or 1,
            think_s=load.think_s,
            due_s=tuple(due_s),
        )


def _records(
    number: int,
    load: Workload,
    prompts: Sequence[Prompt],
    num_warmup: int,
    result: LoadResult,
    tokenizer: Tokenizer,
) -> tuple[RequestRecord, ...]:
    """Returns the records in the order in which the requests ended."""
    return tuple(
        RequestRecord(
            row=number,
            index=exchange.index,
            model=load.model,
            prompt_name=prompts[exchange.index].name,
            scheduled_s=exchange.scheduled_s,
            sent_s=exchange.sent_s,
            end_s=exchange.end_s,
            chunk_s=tuple(exchange.chunk_s),
            prompt_tokens=prompts[exchange.index].num_tokens,
            usage=server_usage(exchange.usage) if exchange.usage else None,
            status=exchange.status,
            finish_reason=exchange.finish_reason,
            error=exchange.error,
            num_waits=exchange.num_waits,
            is_warmup=exchange.index < num_warmup,
            **_counted(exchange.chunk_texts, tokenizer),
        )
        for exchange in result.exchanges
    )


def _counted(texts: Sequence[str], tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the tokens of chunks and completion; nothing if they cannot be counted any more."""
    try:
        of_each = tuple(map(tokenizer.count_plain, texts))
        return {"chunk_tokens": of_each, "completion_tokens": tokenizer.count_plain("".join(texts))}
    except TargetUnusable:
        return {}


def _row(
    load: Workload, records: Sequence[RequestRecord], result: LoadResult, was_stopped: bool
) -> RowRecord:
    measured = [record for record in records if record.is_measured]
    return RowRecord(
        load=load,
        name=file_stem(load),
        start_s=min((record.scheduled_s for record in measured), default=0.0),
        end_s=max((record.end_s for record in measured), default=0.0),
        timestamp=time.time(),
        overhead=result.overhead,
        was_interrupted=was_stopped,
    )


def _texts(
    prompts: Sequence[Prompt], num_warmup: int, result: LoadResult
) -> tuple[tuple[str, str], ...]:
    answered = [e for e in result.exchanges if e.index >= num_warmup and e.failure is None]
    return tuple((prompts[e.index].text, "".join(e.chunk_texts)) for e in answered)
