"""Dynamic batching: who waits for whom, on a clock that the test moves."""

import math
from collections.abc import Mapping
from functools import partial
from threading import Event, Thread

import pytest

from inference_api.core.batching import Batching
from inference_api.core.decode_backend import IDLE_WAIT_S
from inference_api.core.input_queue import InputQueue, Waiting
from inference_api.request import (
    FinishReason,
    GenerationParams,
    GenerationRequest,
    OutputQueue,
    SessionId,
)
from inference_api.settings import Settings
from tests.inference_api.core.test_decode_backend import NAME, Loop, drained

DYNAMIC: Mapping[str, object] = {"batching": "dynamic", "max_batch": 3, "batch_timeout_ms": 100}
NOBODY = Waiting(0, 0.0, is_closed=False)


@pytest.fixture
def loop() -> Loop:
    return Loop(rows=8, context=64, chunk=100, settings=DYNAMIC)


def running(loop: Loop) -> list[str]:
    return [str(row.request.output.session_id) for row in loop.backend.users if row is not None]


@pytest.mark.parametrize(
    ("waiting", "num_busy", "opens_at_s", "admitted"),
    [
        (NOBODY, 0, math.inf, (0, 0)),
        (Waiting(1, 5.0, is_closed=False), 0, 5.0 + 0.1, (0, 3)),
        (Waiting(2, 5.0, is_closed=True), 0, -math.inf, (3, 3)),
        (Waiting(3, 5.0, is_closed=False), 0, -math.inf, (3, 3)),
        (Waiting(9, 5.0, is_closed=True), 1, math.inf, (0, 0)),
    ],
)
def test_batch_begins_when_it_is_full_or_its_oldest_has_waited_and_nobody_runs(
    waiting: Waiting, num_busy: int, opens_at_s: float, admitted: tuple[int, int]
) -> None:
    batching = Batching(gathers=True, max_batch=3, timeout_s=0.1)
    assert batching.opens_at_s(waiting, num_busy) == opens_at_s
    times_s = (math.nextafter(5.0 + 0.1, 0.0), 5.0 + 0.1)
    assert tuple(batching.num_admitted(waiting, num_busy, at_s) for at_s in times_s) == admitted


def test_continuous_batching_lets_everybody_in_at_once() -> None:
    batching = Batching(gathers=False, max_batch=3, timeout_s=0.1)
    assert batching.num_admitted(Waiting(5, 0.0, is_closed=False), num_busy=2, now_s=0.0) == 5
    assert batching.opens_at_s(Waiting(5, 0.0, is_closed=False), num_busy=0) == -math.inf
    assert batching.opens_at_s(NOBODY, num_busy=0) == math.inf


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Settings(), Batching(False, 4, 0.1)),
        (Settings(batching="dynamic"), Batching(True, 4, 0.1)),
        (Settings.model_validate(DYNAMIC), Batching(True, 3, 0.1)),
    ],
)
def test_setting_says_which(settings: Settings, expected: Batching) -> None:
    assert Batching.of(settings) == expected


def test_full_batch_begins_at_once_and_runs_to_its_end_before_the_next(loop: Loop) -> None:
    short, long, other = loop.submit("ab"), loop.submit("abcdef"), loop.submit("abc")
    late = loop.submit("z")
    loop.step()
    batch = [queue.session_id for queue in (short, long, other)]
    assert running(loop) == batch
    assert len(loop.input_queue) == 1
    loop.now_s = 10.0  # the late one has waited for long, and rows come free
    loop.step(3)
    assert running(loop) == [long.session_id]
    loop.step(3)
    assert drained(long) == ("abcdef", FinishReason.STOP)
    assert running(loop) == []
    loop.step()
    assert running(loop) == [late.session_id]


def test_batch_that_is_not_full_waits_exactly_until_its_oldest_has_waited(loop: Loop) -> None:
    loop.now_s = 5.0
    loop.submit("abc")
    loop.now_s = 5.05
    loop.submit("abc")
    loop.now_s = math.nextafter(5.0 + 0.1, 0.0)
    loop.step()
    assert running(loop) == []
    loop.now_s = 5.0 + 0.1
    loop.step()
    assert len(running(loop)) == 2


def test_who_leaves_while_a_batch_gathers_neither_fills_it_nor_keeps_its_time(loop: Loop) -> None:
    leaving = loop.submit("abc")
    loop.now_s = 0.06
    loop.submit("abc")
    loop.step()
    loop.cancel(leaving)
    loop.submit("abc")
    loop.now_s = 0.1  # by now the one who left would have waited
    loop.step()
    assert running(loop) == []
    loop.now_s = 0.16
    loop.step()
    assert len(running(loop)) == 2


def test_batch_whose_last_one_is_cancelled_makes_way_for_the_next(loop: Loop) -> None:
    batch = [loop.submit("x" * 50) for _ in range(3)]
    loop.step()
    after = loop.submit("y" * 50)
    loop.now_s = 1.0
    for queue in batch:
        assert after.session_id not in running(loop)
        loop.cancel(queue)
        loop.step()
    assert running(loop) == [after.session_id]


def test_priority_says_who_is_in_the_batch_and_the_oldest_when_it_begins(loop: Loop) -> None:
    for name, priority in (("late", 5), ("a", 0), ("urgent", -1), ("b", 0)):
        loop.input_queue.put(
            GenerationRequest(
                *(OutputQueue(SessionId(name), NAME), NAME, (1, 2, 3)),
                GenerationParams(9, priority=priority),
            )
        )
    loop.step()
    assert running(loop) == ["urgent", "a", "b"]
    loop.step(10)
    assert running(loop) == []
    assert loop.input_queue.waiting(NAME) == Waiting(1, 0.0, is_closed=False)
    loop.now_s = 0.1  # it counts as having come 50 s later only where others come first
    loop.step()
    assert running(loop) == ["late"]


def test_models_gather_batches_of_their_own() -> None:
    loop = Loop(rows=8, chunk=100, models=("a", "b"), settings=DYNAMIC)
    busy = [loop.submit("x" * 9, model="a") for _ in range(3)]
    single = loop.submit("y" * 9, model="b")
    loop.step()
    assert running(loop) == [queue.session_id for queue in busy]
    loop.now_s = 0.1
    loop.step()
    assert running(loop) == [*(queue.session_id for queue in busy), single.session_id]


def test_draining_waits_for_no_batch_to_be_full(loop: Loop) -> None:
    told: list[str] = []
    queues = [loop.submit("ab") for _ in range(4)]
    loop.step(2)
    loop.backend.drain(on_drained=lambda: told.append("drained"))
    for _ in range(6):  # on a clock that stands still
        loop.step()
        loop.backend._go_on_draining(until_s=10.0)
    assert [drained(queue) for queue in queues] == [("ab", FinishReason.STOP)] * 4
    assert told == ["drained"]


def test_rest_ends_when_the_oldest_has_waited(loop: Loop) -> None:
    assert loop.backend._residents.idle_s(loop.now_s) == math.inf
    loop.submit("abc")
    loop.now_s = 0.03
    assert loop.backend._residents.idle_s(loop.now_s) == pytest.approx(0.07)
    loop.now_s = 0.2
    assert loop.backend._residents.idle_s(loop.now_s) == 0.0


def test_loop_rests_until_then_and_no_longer_than_usual(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(loop.input_queue, "wait_for_request", waits.append)
    del loop.backend._rest  # the real one
    loop.step()
    loop.submit("abc")
    loop.step()
    loop.now_s = 0.09
    loop.step()
    loop.now_s = 0.1
    loop.step()  # runs: no rest
    assert waits == [IDLE_WAIT_S, pytest.approx(0.1), pytest.approx(0.01)]


def test_wait_misses_nothing_that_came_before_it() -> None:
    """Else the loop would rest while the request that fills a batch is there."""
    queue = InputQueue(4, {NAME: 4})
    request = GenerationRequest(OutputQueue(SessionId("a"), NAME), NAME, (1, 2))
    for tell in (partial(queue.put, request), queue.wake):
        tell()
        waited = Event()

        def wait(waited: Event = waited) -> None:
            queue.wait_for_request(60.0)
            waited.set()

        Thread(target=wait, daemon=True).start()
        assert waited.wait(60)
