"""The load process against a scripted server: what is sent when, and what every failure becomes."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from random import Random
from threading import Event
from typing import Any

import psutil
import pytest

from benchmarking.errors import RowRefused
from benchmarking.load.generator import LoadJob, LoadResult, Progress, TimedExchange
from benchmarking.load.process import run_load
from benchmarking.load.schedule import due_times_s, lengths
from benchmarking.load.targets import Endpoint, Kind, Prompt
from benchmarking.machine import stolen_s
from benchmarking.records import Distribution
from lab.kit import scripted_server
from lab.kit.scripted_server import Ending, Script, ScriptedServer, Stall, scripted
from lab.kit.servers import free_port

USAGE = {"prompt_tokens": 2, "completion_tokens": 3}
PROMPT = Prompt("p", "two words", 2)
QUICK = Script((0.05, 0.01, 0.01), ("one ", "two ", "three"), USAGE)


def job_for(base: str, count: int, model: str = "m", kind: Kind = "openai") -> LoadJob:
    target = Endpoint(kind, base)
    requests = (target.request(model, PROMPT, 3),) * count
    return LoadJob(target.address, requests, target.answer, time.monotonic(), 60.0, 20.0)


def run(job: LoadJob, stop: Event | None = None) -> LoadResult:
    return run_load(job, lambda progress: None, stop or Event())


def only(result: LoadResult) -> TimedExchange:
    (exchange,) = result.exchanges
    return exchange


def test_an_answer_is_kept_whole_with_the_time_of_every_piece() -> None:
    with scripted({"m": QUICK}) as (server, base):
        exchange = only(run(job_for(base, 1)))
    assert (exchange.status, exchange.error, exchange.finish_reason) == (200, None, "length")
    assert "".join(exchange.chunk_texts) == "one two three"
    assert exchange.usage == USAGE
    times = [exchange.scheduled_s, exchange.sent_s, *exchange.chunk_s, exchange.end_s]
    assert times == sorted(times)
    assert exchange.chunk_s[0] - exchange.sent_s >= 0.05
    assert server.requests[0] == {
        "model": "m",
        "messages": [{"role": "user", "content": "two words"}],
        "max_tokens": 3,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_closed_loop_keeps_exactly_so_many_requests_in_flight() -> None:
    with scripted({"m": QUICK}) as (_, base):
        result = run(replace(job_for(base, 10), concurrency=3))
    exchanges = sorted(result.exchanges, key=lambda exchange: exchange.index)
    assert [exchange.index for exchange in exchanges] == list(range(10))
    ends = sorted(exchange.end_s for exchange in exchanges)
    for exchange in exchanges[3:]:  # each is sent when one has ended, so that two are left
        ended = sum(end_s <= exchange.sent_s for end_s in ends)
        assert exchange.index - ended < 3


class MeetingServer(ScriptedServer):
    """Answers nobody before four have asked."""

    async def _complete(self, script: Script, body: dict[str, Any], writer: Any) -> None:
        while len(self.requests) < 4:
            await asyncio.sleep(0.01)
        await super()._complete(script, body, writer)


def test_a_user_of_a_closed_loop_thinks_before_the_next_request() -> None:
    with scripted({"m": QUICK}) as (_, base):
        result = run(replace(job_for(base, 3), think_s=0.05))
    exchanges = sorted(result.exchanges, key=lambda exchange: exchange.index)
    for before, after in pairwise(exchanges):
        assert after.scheduled_s - before.end_s >= 0.04  # timers may fire a little early
        assert after.sent_s >= after.scheduled_s


def test_an_open_loop_waits_for_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted_server, "ScriptedServer", MeetingServer)
    due_s = (0.0, 0.01, 0.02, 0.03)
    with scripted({"m": QUICK}) as (_, base):
        result = run(replace(job_for(base, 4), due_s=due_s))
    exchanges = sorted(result.exchanges, key=lambda exchange: exchange.index)
    began_s = exchanges[0].scheduled_s
    scheduled = [exchange.scheduled_s - began_s for exchange in exchanges]
    assert scheduled == pytest.approx(due_s)
    assert [exchange.error for exchange in exchanges] == [None] * 4


def test_a_stall_is_in_the_latency_of_every_request_that_was_due_in_it() -> None:
    """Coordinated omission: twenty requests a second, and for a second nothing is answered."""
    stall = Stall(at_s=0.5, for_s=1.0)
    due_s = due_times_s(40, 20.0, "constant", Random(0))
    script = Script((0.01,), ("word",), {"completion_tokens": 1})
    with scripted({"m": script}, stall) as (_, base):
        result = run(replace(job_for(base, 40), due_s=tuple(due_s)))
    first, *others = sorted(result.exchanges, key=lambda exchange: exchange.index)
    # The server counts from the first request, which came to it between these two.
    ends_s, has_begun_s = first.sent_s + 1.5, first.chunk_s[0] + 0.5
    stalled = [exchange for exchange in others if has_begun_s <= exchange.scheduled_s < ends_s]
    assert stalled
    for exchange in stalled:
        assert exchange.chunk_s[0] >= ends_s


@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [
        ("broken", "connection", "in the middle of the answer"),
        ("malformed", "protocol", "not json"),
        ("error event", "server", "out of memory"),
        ("not finished", "protocol", "without a finish reason"),
    ],
)
def test_a_stream_that_ends_badly_is_an_error_that_keeps_its_times(
    ending: Ending, code: str, message: str
) -> None:
    with scripted({"m": replace(QUICK, ending=ending)}) as (_, base):
        exchange = only(run(job_for(base, 1)))
    assert exchange.error is not None
    assert (exchange.error.code, exchange.status) == (code, 200)
    assert message in exchange.error.message
    assert len(exchange.chunk_s) == 3


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_a_refusal_bears_its_status_and_its_reason(status: int) -> None:
    with scripted({"m": Script(status=status)}) as (_, base):
        exchange = only(run(job_for(base, 1)))
    assert exchange.error is not None
    assert (exchange.error.code, exchange.error.message) == (str(status), "as scripted")
    assert exchange.status == status


def test_nobody_listening_is_a_connection_error() -> None:
    exchange = only(run(job_for(f"http://127.0.0.1:{free_port()}/v1", 1)))
    assert exchange.error is not None
    assert exchange.error.code == "connection"
    assert exchange.status is None


def test_a_request_that_takes_too_long_times_out_and_the_others_go_on() -> None:
    scripts: Mapping[str, Script] = {"m": QUICK, "slow": Script((30.0,), ("late",), USAGE)}
    with scripted(scripts) as (_, base):
        job = job_for(base, 2)
        slow = Endpoint("openai", base).request("slow", PROMPT, 3)
        job = replace(job, requests=(slow, *job.requests), request_timeout_s=3.0, concurrency=1)
        result = run(job)
    codes = [exchange.error.code if exchange.error else None for exchange in result.exchanges]
    assert codes == ["timeout", None, None]


def test_nothing_new_is_sent_once_the_row_is_out_of_time() -> None:
    with scripted({"m": QUICK}) as (server, base):
        result = run(replace(job_for(base, 1000), row_timeout_s=0.5))
    assert 1 <= len(result.exchanges) == len(server.requests) < 100
    assert all(exchange.error is None for exchange in result.exchanges)


@pytest.mark.parametrize("due_s", [(), (0.0, 30.0)], ids=["closed", "open"])
def test_stopping_keeps_what_has_ended_and_cuts_off_the_rest(due_s: tuple[float, ...]) -> None:
    stop = Event()

    def stop_after_the_first(progress: Progress) -> None:
        if progress.num_done == 1:
            stop.set()

    scripts = {"m": QUICK, "slow": Script((30.0,), ("late",), USAGE)}
    with scripted(scripts) as (_, base):
        job = job_for(base, 1)
        slow = Endpoint("openai", base).request("slow", PROMPT, 3)
        job = replace(job, requests=(*job.requests, slow), due_s=due_s)
        result = run_load(job, stop_after_the_first, stop)
    codes = [exchange.error.code if exchange.error else None for exchange in result.exchanges]
    assert codes == ([None] if due_s else [None, "interrupted"])


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_long_answers_of_many_streams_arrive_whole(
    unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    script = Script((0.05, *[0.0] * 1999), (" word",) * 2000, USAGE)
    with scripted({"m": script}) as (_, base):
        result = run(replace(job_for(base, 20), concurrency=20))
    assert [len(exchange.chunk_s) for exchange in result.exchanges] == [2000] * 20
    assert {"".join(exchange.chunk_texts) for exchange in result.exchanges} == {" word" * 2000}


def test_a_load_process_that_dies_refuses_its_row() -> None:
    broken = replace(job_for("http://127.0.0.1:1/v1", 1), due_s=("soon",))  # type: ignore[arg-type]
    with pytest.raises(RowRefused, match="exit status 1"):
        run(broken)


def test_the_client_reports_what_it_took_itself() -> None:
    with scripted({"m": replace(QUICK, delays_s=(0.5, 0.0, 0.0))}) as (_, base):
        overhead = run(job_for(base, 1)).overhead
    assert overhead is not None
    assert 0 < overhead.cpu_share < 1
    assert 0 <= overhead.lag_p50_s <= overhead.lag_p99_s <= overhead.lag_max_s
    assert overhead.stolen_share is not None
    assert 0 <= overhead.stolen_share < (psutil.cpu_count() or 1)


def test_what_the_host_took_is_read_as_psutil_reads_it() -> None:
    before_s, reported_s, after_s = stolen_s(), psutil.cpu_times().steal, stolen_s()
    assert before_s is not None
    assert after_s is not None
    assert before_s <= reported_s <= after_s


@pytest.mark.parametrize(
    ("distribution", "spread"), [("constant", 0.0), ("uniform", 1 / 3), ("exponential", 1.0)]
)
def test_a_schedule_has_its_rate_and_its_spread(distribution: Distribution, spread: float) -> None:
    due_s = due_times_s(20_001, 4.0, distribution, Random(1))
    waits = [later - earlier for earlier, later in pairwise(due_s)]
    mean_s = due_s[-1] / 20_000
    assert mean_s == pytest.approx(0.25, rel=0.03)
    variance = sum((wait - mean_s) ** 2 for wait in waits) / len(waits)
    assert variance == pytest.approx(spread * 0.0625, rel=0.05, abs=1e-12)


def test_waits_and_lengths_spread_as_asked() -> None:
    due_s = due_times_s(20_001, 4.0, "constant", Random(1), scv=2.0)
    waits = [later - earlier for earlier, later in pairwise(due_s)]
    mean_s = due_s[-1] / 20_000
    assert mean_s == pytest.approx(0.25, rel=0.05)
    variance = sum((wait - mean_s) ** 2 for wait in waits) / len(waits)
    assert variance == pytest.approx(2 * 0.0625, rel=0.1)
    assert lengths(3, 64, 0.0, Random(1)) == [64, 64, 64]
    drawn = lengths(20_000, 100, 0.25, Random(1))
    assert sum(drawn) / len(drawn) == pytest.approx(100, rel=0.05)
    assert 25 <= min(drawn) < max(drawn) <= 400


def test_a_schedule_is_the_same_for_the_same_seed() -> None:
    first, again = (due_times_s(9, 4.0, "exponential", Random(5)) for _ in range(2))
    assert first == again != due_times_s(9, 4.0, "exponential", Random(6))
