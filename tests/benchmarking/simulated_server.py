"""A continuous-batching server simulated step by step: load in, records out, no clock and no noise.

A step takes a + b per row that decodes + p per prompt token; what its tokens take is at least the
floor, as reading the weights is. Of the prompts waiting for it, the oldest first, `CHUNK_TOKENS`
are prefilled; with a budget, while rows decode, only as many as they leave of it, at least
`MIN_CHUNK_TOKENS`.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from itertools import takewhile
from random import Random

from benchmarking.load.schedule import due_times_s, lengths
from benchmarking.records import RequestRecord, RowRecord, ServerUsage, Workload
from tests.benchmarking.made_runs import made_record

CHUNK_TOKENS, MIN_CHUNK_TOKENS = 256, 8


@dataclass(frozen=True, slots=True)
class SimulatedServer:
    rows: int = 32
    step_s: float = 0.002  # a
    row_s: float = 0.00016  # b
    prompt_token_s: float = 0.00003  # p
    floor_s: float = 0.0
    overhead_s: float = 0.003  # before a request reaches its queue
    contention_s: float = 0.0  # more of it for each that is served meanwhile,
    handling_s: float = 0.0  # and for each other that comes at the same time
    budget_tokens: int | None = None  # of a step, those of rows that decode included

    def measure(self, load: Workload, seed: int) -> tuple[RowRecord, list[RequestRecord]]:
        arrivals = _Arrivals(load, Random(seed), self.handling_s)
        queue: deque[_Request] = deque()
        serving: list[_Request] = []
        done: list[_Request] = []
        now_s = 0.0
        while len(done) < load.num_requests:
            if not serving and not queue and not arrivals.has_come(now_s - self.overhead_s):
                now_s = arrivals.next_s() + self.overhead_s
            late_s = self.overhead_s + self.contention_s * len(serving)
            queue.extend(arrivals.take(now_s - late_s))
            while queue and len(serving) < self.rows:
                serving.append(queue.popleft())
                serving[-1].admitted_s = now_s
            now_s += self._step_s(serving)
            decoding = [request for request in serving if not request.left_tokens]
            for request in decoding:
                request.chunk_s.append(now_s)
                request.batches.append(len(decoding))
                if len(request.chunk_s) == request.output_tokens:
                    serving.remove(request)
                    done.append(request)
                    arrivals.ended(now_s)
        records = [_record(request, load, i) for i, request in enumerate(sorted(done, key=_sent_s))]
        return RowRecord(load, "simulated", 0.0, now_s, 1.7e9), records

    def _step_s(self, serving: list["_Request"]) -> float:
        """Prefill what fits into this step and say how long it takes."""
        prefilling = [request for request in serving if request.left_tokens]  # mostly none
        decoding, prefilled_tokens = len(serving) - len(prefilling), 0
        room_tokens = self._room_tokens(decoding)
        for request in prefilling:
            tokens = min(request.left_tokens, room_tokens - prefilled_tokens)
            request.left_tokens -= tokens
            prefilled_tokens += tokens
            decoding += not request.left_tokens
        tokens_s = self.row_s * decoding + self.prompt_token_s * prefilled_tokens
        return self.step_s + max(self.floor_s, tokens_s)

    def _room_tokens(self, decoding: int) -> int:
        if self.budget_tokens is None or not decoding:
            return CHUNK_TOKENS
        return min(CHUNK_TOKENS, max(self.budget_tokens - decoding, MIN_CHUNK_TOKENS))


@dataclass(slots=True)
class _Request:
    sent_s: float
    left_tokens: int  # of its prompt
    output_tokens: int
    admitted_s: float = 0.0
    chunk_s: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)


def _sent_s(request: _Request) -> float:
    return request.sent_s


class _Arrivals:
    """When requests come: on schedule, or whenever one ends."""

    def __init__(self, load: Workload, rng: Random, handling_s: float) -> None:
        self._handling_s = handling_s
        self._left = load.num_requests
        self._input_tokens = load.input_tokens
        answers = lengths(load.num_requests, load.output_tokens, load.output_scv, rng)
        self._output_tokens = iter(answers)
        self._is_closed = load.qps is None
        if load.qps is None:
            self._due_s = deque([0.0] * min(load.concurrency or 1, load.num_requests))
        else:
            distribution = load.qps_distribution
            self._due_s = deque(due_times_s(load.num_requests, load.qps, distribution, rng))
        self._left -= len(self._due_s)

    def has_come(self, now_s: float) -> bool:
        return bool(self._due_s) and self._due_s[0] <= now_s and self.next_s() <= now_s

    def next_s(self) -> float:
        due_s = self._due_s[0]
        together = takewhile(due_s.__eq__, self._due_s)  # no further: there are thousands
        return due_s + self._handling_s * (sum(1 for _ in together) - 1)

    def take(self, now_s: float) -> list[_Request]:
        come = []
        while self.has_come(now_s):
            tokens = self._input_tokens, next(self._output_tokens)
            come.append(_Request(self._due_s.popleft(), *tokens))
        return come

    def ended(self, now_s: float) -> None:
        if self._is_closed and self._left:
            self._left -= 1
            self._due_s.append(now_s)


def _record(request: _Request, load: Workload, index: int) -> RequestRecord:
    batch = round(sum(request.batches) / len(request.batches))
    return replace(
        made_record(model=load.model, due_s=request.sent_s),
        index=index,
        chunk_s=tuple(request.chunk_s),
        end_s=request.chunk_s[-1],
        usage=ServerUsage(
            prompt_tokens=load.input_tokens,
            completion_tokens=request.output_tokens,
            ttft_s=request.chunk_s[0] - request.sent_s,
            queue_s=request.admitted_s - request.sent_s,
            batch_size_used=batch,
        ),
    )
