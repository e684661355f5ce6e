"""Sends the load: a closed or an open loop of requests, in an event loop that measures its delays.

A closed loop keeps `concurrency` requests in flight: a user with an answer takes the next request.
An open loop sends on an absolute schedule without waiting for answers; a request that is sent late
still counts from when it was due. Runs in the load process; arguments and results are pickled.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarking.analysis.latency import received_tokens
from benchmarking.load.answers import StreamReader
from benchmarking.load.client import CUT_OFF, Address, Outcome, Peer
from benchmarking.load.usage import server_usage
from benchmarking.machine import stolen_s
from benchmarking.records import ClientOverhead, RequestError, failure_of

PROGRESS_PERIOD_S = 0.25
LAG_PERIOD_S = 0.05
TOO_MANY_REQUESTS = 429
MIN_WAIT_S = 0.1  # least wait before a request is sent again, even if the server asks for less


@dataclass(frozen=True, slots=True, repr=False)
class LoadJob:
    """Requests that are ready to be sent, and their times. It has the key, so it is not shown.

    Without `due_s` it is a closed loop of `concurrency` users, who wait for `think_s` before the
    next request. Times count from `origin_s` of `time.monotonic`, but due times from the start of
    the job. After `row_timeout_s` no further request is sent, and no request may take longer than
    `request_timeout_s`.
    """

    address: Address
    requests: tuple[bytes, ...]
    answer: type[StreamReader]
    origin_s: float
    row_timeout_s: float
    request_timeout_s: float
    concurrency: int = 1
    think_s: float = 0.0
    due_s: tuple[float, ...] = ()


@dataclass(slots=True)
class TimedExchange:
    """One request and its answer, with times as `records.RequestRecord` has them."""

    index: int
    scheduled_s: float
    sent_s: float
    end_s: float
    chunk_s: list[float]
    chunk_texts: list[str]
    usage: dict[str, Any] | None
    status: int | None
    finish_reason: str | None
    error: RequestError | None
    num_waits: int = 0

    @property
    def failure(self) -> RequestError | None:
        return failure_of(self.error, self.finish_reason, self.chunk_s)


@dataclass(slots=True)
class Progress:
    """The progress of a row, with its warm-up. `began_s` is on `time.monotonic`. The last four
    fields are sums over completed requests, so that no work is done per token."""

    num_requests: int
    began_s: float
    num_done: int = 0
    num_failed: int = 0
    num_in_flight: int = 0
    num_answered: int = 0
    output_tokens: int = 0
    first_token_s: float = 0.0  # seconds from when each was due to its first token
    decode_s: float = 0.0  # seconds from the first token of each to its last

    def add(self, exchange: TimedExchange) -> None:
        """Count a request that has ended."""
        self.num_in_flight -= 1
        self.num_done += 1
        if exchange.failure is not None:
            self.num_failed += 1
        else:
            times_s = exchange.chunk_s
            self.num_answered += 1
            self.output_tokens += received_tokens(server_usage(exchange.usage or {}), len(times_s))
            self.first_token_s += times_s[0] - exchange.scheduled_s
            self.decode_s += times_s[-1] - times_s[0]


@dataclass(slots=True)
class LoadResult:
    """The requests in the order in which they ended, and the sender's own cost."""

    exchanges: list[TimedExchange] = field(default_factory=list)
    overhead: ClientOverhead | None = None


async def apply_load(
    job: LoadJob, stop: asyncio.Event, on_progress: Callable[[Progress], None]
) -> LoadResult:
    """Sends all requests. If `stop` is set, sends no more, and cuts off those in flight."""
    sender = _Sender(job)
    loop = _open_loop(job, sender) if job.due_s else _closed_loop(job, sender)
    watch = _Watch(lambda: on_progress(sender.progress))
    running = asyncio.create_task(loop)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        sender.cut_off()
        running.cancel()
        await asyncio.wait((running,))
    await sender.all_ended()
    if not running.cancelled():
        running.result()
    return LoadResult(sender.exchanges, watch.close())


async def _closed_loop(job: LoadJob, sender: "_Sender") -> None:
    numbers = iter(range(len(job.requests)))

    async def worker() -> None:
        for number in numbers:
            if sender.is_out_of_time():
                return
            await sender.begin(number, sender.now_s())
            if job.think_s:
                await asyncio.sleep(job.think_s)

    await asyncio.gather(*(worker() for _ in range(min(job.concurrency, len(job.requests)))))


async def _open_loop(job: LoadJob, sender: "_Sender") -> None:
    start_s = sender.now_s()
    for number, due_s in enumerate(job.due_s):
        while (early_s := start_s + due_s - sender.now_s()) > 0:
            await asyncio.sleep(early_s)  # timers may fire up to a millisecond early
        if sender.is_out_of_time():
            break
        sender.begin(number, start_s + due_s)
    await sender.all_ended()


class _Sender:
    """Sends requests and keeps their results. Event loop only."""

    def __init__(self, job: LoadJob) -> None:
        self.progress = Progress(len(job.requests), time.monotonic())
        self.exchanges: list[TimedExchange] = []
        self._job = job
        self._peer = Peer(job.address, self.now_s, job.request_timeout_s)
        self._tasks: set[asyncio.Task[None]] = set()
        self._deadline_s = self.now_s() + job.row_timeout_s

    def now_s(self) -> float:
        return time.monotonic() - self._job.origin_s

    def is_out_of_time(self) -> bool:
        return self.now_s() >= self._deadline_s

    def begin(self, number: int, scheduled_s: float) -> asyncio.Task[None]:
        task = asyncio.create_task(self._exchange(number, scheduled_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def all_ended(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cut_off(self) -> None:
        """Send no more requests, and cut off those in flight."""
        self._deadline_s = 0.0
        for task in self._tasks:
            task.cancel()

    async def _exchange(self, number: int, scheduled_s: float) -> None:
        self.progress.num_in_flight += 1
        answer, sent_s, outcome, num_waits = await self._send_when_let(number)
        exchange = TimedExchange(
            index=number,
            scheduled_s=scheduled_s,
            sent_s=sent_s,
            end_s=outcome.end_s,
            chunk_s=answer.chunk_s,
            chunk_texts=answer.chunk_texts,
            usage=answer.usage,
            status=outcome.status,
            finish_reason=answer.finish_reason,
            error=outcome.error,
            num_waits=num_waits,
        )
        self.exchanges.append(exchange)
        self.progress.add(exchange)

    async def _send_when_let(self, number: int) -> tuple[StreamReader, float, Outcome, int]:
        """Sends a request. Returns its answer, time of sending, outcome, and number of waits.

        A server with a limit answers 429 with a time to retry. The request is sent again until its
        own or the row's timeout would pass; then the refusal counts.
        """
        until_s = min(self.now_s() + self._job.request_timeout_s, self._deadline_s)
        num_waits = 0
        while True:
            answer, sent_s = self._job.answer(), self.now_s()
            outcome = await self._peer.send(self._job.requests[number], answer)
            if outcome.status != TOO_MANY_REQUESTS or outcome.retry_after_s is None:
                break
            wait_s = max(outcome.retry_after_s, MIN_WAIT_S)
            if self.now_s() + wait_s > until_s:
                break
            try:
                await asyncio.sleep(wait_s)
            except asyncio.CancelledError:
                outcome = Outcome(self.now_s(), outcome.status, CUT_OFF)
                break
            num_waits += 1
        return answer, sent_s, outcome, num_waits


class _Watch:
    """Reports progress while the load runs, and measures the client's own cost. The delay of timers
    shows how late requests may be sent, and arrivals of tokens noticed."""

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self._cpu_s = time.process_time()
        self._stolen_s = stolen_s()
        self._began_s = time.monotonic()
        self._lags_s: list[float] = []
        self._task = asyncio.create_task(self._run())

    def close(self) -> ClientOverhead:
        self._task.cancel()
        cpu_s = time.process_time() - self._cpu_s
        elapsed_s = time.monotonic() - self._began_s
        lags_s = sorted(self._lags_s) or [0.0]
        p50_s, p99_s = (lags_s[len(lags_s) * percent // 100] for percent in (50, 99))
        now_stolen_s = stolen_s()
        stolen_share = None
        if now_stolen_s is not None and self._stolen_s is not None:
            stolen_share = (now_stolen_s - self._stolen_s) / elapsed_s
        return ClientOverhead(cpu_s / elapsed_s, p50_s, p99_s, lags_s[-1], stolen_share)

    async def _run(self) -> None:
        reported_s = due_s = self._began_s
        while True:
            due_s += LAG_PERIOD_S
            await asyncio.sleep(due_s - time.monotonic())
            now_s = time.monotonic()
            self._lags_s.append(now_s - due_s)
            if now_s - reported_s >= PROGRESS_PERIOD_S:
                self._report()
                reported_s = now_s
