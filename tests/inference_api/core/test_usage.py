"""The server's own account of one generation, on times written by hand."""

from inference_api.apis.openai.choices import usage
from inference_api.core.timeline import Timeline
from inference_api.request import GenerationRequest, OutputQueue, SessionId

REQUEST = GenerationRequest(OutputQueue(SessionId("s"), "m"), "m", tuple(range(7)))


def test_the_times_of_an_answer_are_those_of_its_tokens() -> None:
    gaps_s: list[float] = []
    timeline = Timeline(10.0, gaps_s.append)
    timeline.admitted(10.5, reused_tokens=3)
    for now_s in (11.0, 11.25, 11.5):
        timeline.tokens(now_s, num_tokens=1, batch_size=2)
    record = timeline.record(REQUEST, finish_reason="length")
    found = usage([record], [record])
    assert found["queue_time"] == 0.5
    assert found["time_to_first_token"] == 1.0
    assert found["total_latency"] == 1.5
    assert found["completion_tokens_after_first_per_sec"] == 4.0
    assert found["batch_size_used"] == 2
    assert found["prompt_tokens_details"] == {"cached_tokens": 3}
    assert gaps_s == [0.25, 0.25]


def test_several_choices_have_counts_only() -> None:
    timeline = Timeline(0.0, lambda gap_s: None)
    record = timeline.record(REQUEST, finish_reason="stop")
    assert "queue_time" not in usage([record, record], [record])


def test_tokens_that_come_together_share_the_time_since_the_ones_before() -> None:
    gaps_s: list[float] = []
    timeline = Timeline(0.0, gaps_s.append)
    for now_s, num_tokens in ((1.0, 2), (1.5, 2), (2.5, 4)):
        timeline.tokens(now_s, num_tokens, batch_size=3)
    record = timeline.record(REQUEST, finish_reason="length")
    assert gaps_s == [0.0, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25]
    assert record.completion_tokens == 8
    assert record.tokens_per_s == 7 / 1.5
    assert record.mean_batch_size == 3


def test_acceptance_is_that_of_the_tokens_of_the_answer() -> None:
    timeline = Timeline(0.0, lambda gap_s: None)
    for now_s, num_tokens in ((1.0, 3), (2.0, 1), (3.0, 2)):
        timeline.tokens(now_s, num_tokens, batch_size=1)
    timeline.depths.add(4, 2)
    timeline.depths.add(2, 1)
    record = timeline.record(REQUEST, finish_reason="length")
    found = usage([record], [record])
    assert (found["acceptance_rate"], found["tokens_per_step"]) == (0.5, 2.0)
    assert found["acceptance_by_depth"] == [1.0, 0.5, 0.0, 0.0]


def test_without_drafts_nothing_is_said_about_acceptance() -> None:
    timeline = Timeline(0.0, lambda gap_s: None)
    timeline.tokens(1.0, num_tokens=1, batch_size=1)
    record = timeline.record(REQUEST, finish_reason="length")
    found = usage([record], [record])
    assert found["acceptance_rate"] is None
    assert "tokens_per_step" not in found
    assert "acceptance_by_depth" not in found
