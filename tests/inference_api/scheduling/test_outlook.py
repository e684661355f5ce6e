"""What is known of steps and waits reaches other threads, now and then."""

import pytest

from inference_api.errors import QueueFull
from inference_api.scheduling.outlook import PERIOD_S
from inference_api.scheduling.step_costs import Contents
from tests.inference_api.scheduling.test_decode_backend import NAME, Loop


def timed_loop(**settings: object) -> Loop:
    """Two rows; a step takes 10 ms, and 1 ms more for each prompt token."""
    loop = Loop(settings=settings)
    costs = loop.backend.served[NAME].costs
    costs.warmed_up({1: 0.01, 2: 0.01})
    costs.took(Contents(0, 0, 8), 0.018, 0.0)
    return loop


def predicted_ttft_s(loop: Loop) -> float | None:
    return loop.input_queue.predicted_ttft_s(NAME)


def test_nothing_is_foreseen_before_there_was_a_request() -> None:
    loop = timed_loop()
    loop.step()
    assert predicted_ttft_s(loop) is None


def test_newcomer_waits_for_the_row_that_is_free_first() -> None:
    loop = timed_loop()
    for text, max_tokens in (("abcdefgh", 100), ("ijklmnop", 20)):
        loop.submit(text, max_tokens)
    loop.step(4)  # with both prompts
    loop.now_s += PERIOD_S
    loop.step()
    generated = [len(row.generated) for row in loop.backend.users if row]
    own_s = 8 * 0.001 + 8 / 4 * 0.01  # chunks of 4
    assert predicted_ttft_s(loop) == pytest.approx((1 + 20 - generated[1]) * 0.01 + own_s, rel=0.1)


def test_it_is_looked_at_now_and_then_only() -> None:
    loop = timed_loop()
    loop.step()
    loop.submit("abcdefgh")
    loop.step(3)
    assert predicted_ttft_s(loop) is None
    loop.now_s += PERIOD_S
    loop.step()
    assert predicted_ttft_s(loop) is not None
    assert loop.backend.served[NAME].costs.speed.steps > 1


def test_where_a_free_row_is_not_enough_nothing_is_foreseen() -> None:
    loop = timed_loop(batching="dynamic", max_batch=2, batch_timeout_ms=0)
    loop.submit("abcdefgh")
    loop.step()
    loop.now_s += PERIOD_S
    loop.step()
    assert predicted_ttft_s(loop) is None


def test_who_is_refused_is_told_when_an_answer_would_begin() -> None:
    loop = timed_loop()
    loop.submit("abcdefgh", max_tokens=50)
    loop.step()
    loop.now_s += PERIOD_S
    loop.step()
    for _ in range(101):  # for the free row and 100 places
        loop.submit("waiting!", max_tokens=50)
    with pytest.raises(QueueFull) as caught:
        loop.input_queue.check_room(NAME)
    predicted_s = predicted_ttft_s(loop)
    assert predicted_s is not None
    assert predicted_s > 10  # 100 wait for two rows, half a second each and more
    assert caught.value.retry_after_s == pytest.approx(predicted_s, abs=1)
