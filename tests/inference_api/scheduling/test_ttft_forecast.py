"""What a newcomer would wait, from who is there."""

from dataclasses import replace

import pytest

from inference_api.request import FinishReason, GenerationRequest, OutputQueue, SessionId
from inference_api.scheduling.rows import RowTable, UserRow
from inference_api.scheduling.ttft_forecast import Pace, Traffic, TtftForecast, Work, forecast

PACE = Pace(turn_s=0.01, prompt_token_s=0.001, room_tokens=100)
ONE = Work(prompt_tokens=50, answer_tokens=10)


def test_on_an_idle_server_there_is_only_the_prompt() -> None:
    found = forecast(4, [], [], ONE, PACE)
    assert found.ttft_s == pytest.approx(0.05 + 0.01)
    assert forecast(4, [], [], Work(250, 10), PACE).ttft_s == pytest.approx(0.25 + 3 * 0.01)


def test_with_all_rows_busy_it_takes_the_one_that_is_free_first() -> None:
    running = [Work(0, answer) for answer in (31, 7, 19, 40)]
    found = forecast(4, running, [], ONE, PACE)
    assert found.ttft_s - found.least_s == pytest.approx((1 + 7) * 0.01)


def test_who_waits_goes_first_and_has_a_prompt() -> None:
    """The first in the line takes the row that is free after 8 steps, for 11 steps; the newcomer
    the one after 20."""
    running = [Work(0, answer) for answer in (31, 7, 19, 40)]
    found = forecast(4, running, [ONE], ONE, PACE)
    assert found.ttft_s - found.least_s == pytest.approx(min(8 + 11, 20) * 0.01 + 50 * 0.001)


def test_drafts_shorten_answers() -> None:
    running = [Work(0, 20)]
    plain, drafting = (
        forecast(1, running, [], ONE, replace(PACE, tokens_per_step=tokens)) for tokens in (1, 4)
    )
    assert plain.ttft_s - drafting.ttft_s == pytest.approx((20 - 5) * 0.01)


def test_line_that_has_changed_since_is_reckoned_with() -> None:
    found = TtftForecast(ttft_s=5.0, least_s=0.1, each_s=0.5, num_waiting=8, num_free=0)
    assert [found.at(waiting) for waiting in (8, 10, 6, 0)] == [5.0, 6.0, 4.0, 1.0]
    assert TtftForecast(0.2, 0.1, 0.5, 8, 0).at(0) == 0.1
    free = TtftForecast(ttft_s=0.1, least_s=0.1, each_s=0.5, num_waiting=0, num_free=32)
    assert [free.at(waiting) for waiting in (32, 34)] == [0.1, 1.1]


def test_long_line_is_about_as_long_as_one_that_is_played_through() -> None:
    running = [Work(0, answer) for answer in range(1, 11)]
    short = forecast(10, running, [ONE] * 50, ONE, PACE)
    long = forecast(10, running, [ONE] * 200, ONE, PACE)
    assert short.at(200) == pytest.approx(long.ttft_s, rel=0.05)


def row_of(prompt_tokens: int, limit: int, generated: int = 0, reused: int = 0) -> UserRow:
    request = GenerationRequest(
        OutputQueue(SessionId("s"), "m"), "m", (1,) * prompt_tokens, max_tokens=limit
    )
    row = RowTable(1).assign(request, 10_000, 0.0)
    row.generated.extend([1] * generated)
    row.reuse(reused)
    return row


def test_without_a_request_there_is_no_newcomer_to_speak_of() -> None:
    assert Traffic().newcomer() is None


def test_until_some_have_ended_answers_are_as_long_as_they_may_be() -> None:
    traffic = Traffic()
    traffic.started(row := row_of(30, 100, generated=40, reused=10))
    assert traffic.newcomer() == Work(30, 100)
    assert traffic.left(row) == Work(19, 60)
    assert traffic.expected(row.request, 50) == Work(30, 20)  # the context ends


def test_newcomers_are_like_those_that_ended() -> None:
    """They take a quarter of what they may, and had half of their prompts in a cache."""
    traffic = Traffic()
    for _ in range(50):
        row = row_of(30, 100, generated=25, reused=15)
        traffic.started(row)
        row.finish_reason = FinishReason.STOP
        traffic.ended(row)
    assert traffic.newcomer() == pytest.approx((15, 25))
    assert traffic.expected(row.request, 10_000) == pytest.approx((15, 25))
    assert traffic.left(row_of(30, 100, generated=40)).answer_tokens == pytest.approx(15)
