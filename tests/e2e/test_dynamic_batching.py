"""Dynamic batching over real gunicorn: who shares a batch, who waits for the next; same text."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lab.kit.servers import MOCK_APP, ServedApi, eventually
from tests.forked import served

QUESTIONS = [f"Tell me about {city}." for city in ("Paris", "Lima", "Oslo", "Rome", "Cairo")]
MANY_MS = 60_000  # so that only a full batch begins


def answer(api: ServedApi, prompt: str) -> dict[str, Any]:
    body = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
    response = api.post("/v1/completions", model="hearth-tiny", prompt=prompt, **body)
    assert response.status_code == 200, response.text
    said: dict[str, Any] = response.json()
    return said


def waits(api: ServedApi, num_busy: int, num_queued: int) -> bool:
    state = api.state()
    return (state["busy_rows"], state["queued"]) == (num_busy, num_queued)


def test_four_share_a_batch_and_the_fifth_waits_for_the_next(
    model_api: ServedApi, tmp_path: Path
) -> None:
    dynamic = served(tmp_path / "log", BATCHING="dynamic", BATCH_TIMEOUT_MS=MANY_MS)
    with dynamic as api, ThreadPoolExecutor(8) as pool:
        gathering = [pool.submit(answer, api, question) for question in QUESTIONS[:3]]
        eventually(lambda: waits(api, num_busy=0, num_queued=3))
        batch = [*gathering, pool.submit(answer, api, QUESTIONS[3])]
        first_four = [future.result() for future in batch]
        fifth = pool.submit(answer, api, QUESTIONS[4])
        eventually(lambda: waits(api, num_busy=0, num_queued=1))
        begun_with = [pool.submit(answer, api, question) for question in QUESTIONS[:3]]
        answers = [*first_four, fifth.result()]
        assert [future.result()["choices"] for future in begun_with] == [
            each["choices"] for each in answers[:3]
        ]
    assert [each["usage"]["batch_size_used"] for each in answers] == [4] * 5
    assert [each["choices"] for each in answers] == [
        answer(model_api, question)["choices"] for question in QUESTIONS
    ]


def test_request_alone_waits_for_company_until_the_timeout(tmp_path: Path) -> None:
    with served(tmp_path / "log", MOCK_APP, BATCHING="dynamic", BATCH_TIMEOUT_MS=300) as api:
        usage = answer(api, "nobody else")["usage"]
    assert usage["batch_size_used"] == 1
    assert 0.3 <= usage["queue_time"] <= usage["time_to_first_token"]
