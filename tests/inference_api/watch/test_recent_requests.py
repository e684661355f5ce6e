"""The ring of the last requests: what it tells of each, and that it stays small."""

from dataclasses import replace

from inference_api.errors import QueueFull
from inference_api.watch.recent_requests import MAX_REQUESTS, MAX_TEAM, RecentRequests
from tests.inference_api.watch.test_metrics import CALLER, RECORD


def test_a_generation_is_told_with_its_timings() -> None:
    recent = RecentRequests(clock=lambda: 7.0)
    record = replace(
        RECORD, model="m", prompt_tokens=9, reused_tokens=8, completion_tokens=5,
        queue_s=0.001, ttft_s=0.01, e2e_s=0.05, tokens_per_s=100.0,
    )  # fmt: skip
    recent.ended(record)
    (told,) = recent.newest_first()
    assert (told.ended_at, told.request_id, told.team_id) == (7.0, "r-1", "search")
    assert (told.route, told.model) == ("/inference", "m")
    assert (told.prompt_tokens, told.cached_tokens, told.completion_tokens) == (9, 8, 5)
    assert (told.queue_ms, told.ttft_ms, told.itl_ms, told.total_ms) == (1.0, 10.0, 10.0, 50.0)
    assert (told.finish_reason, told.status, told.error) == ("stop", 200, None)


def test_figures_of_what_did_not_happen_are_missing() -> None:
    recent = RecentRequests()
    recent.ended(replace(RECORD, completion_tokens=0, finish_reason="cancelled"))
    recent.refused(CALLER, "m", QueueFull(1))
    refused, cancelled = recent.newest_first()
    assert (cancelled.ttft_ms, cancelled.itl_ms, cancelled.total_ms) == (None, None, None)
    assert (refused.status, refused.error, refused.prompt_tokens) == (503, "queue_full", None)


def test_only_the_last_are_kept_and_no_name_is_long() -> None:
    recent = RecentRequests()
    for number in range(3 * MAX_REQUESTS):
        caller = replace(CALLER, request_id=str(number), team_id="t" * 10_000)
        recent.refused(caller, "m", QueueFull(1))
    kept = recent.newest_first()
    assert [int(each.request_id) for each in kept] == [*range(299, 199, -1)]
    assert {len(each.team_id or "") for each in kept} == {MAX_TEAM}
