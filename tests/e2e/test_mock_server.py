"""The life of requests over real gunicorn and the mock backend: streams, errors, load."""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import requests

from lab.kit.servers import MOCK_APP, TIMEOUT_S, ServedApi, eventually, post_bytes
from tests.forked import served

PARIS = {
    "text": "Have you been to Paris, France?",
    "temperature": "1",
    "top_k": "10",
    "top_p": "0.9",
    "max_tokens": "64",
}
AUSTIN = {
    "text": "What is in Austin Texas?",
    "temperature": 1,
    "top_k": 10,
    "top_p": 0.9,
    "max_tokens": 16,
    "stop_sequence": None,
    "return_prompt": None,
}
NUMBER = {
    "text": "What number did you repeat?",
    "top_k": 1,
    "top_p": 0.9,
    "temperature": 0.7,
    "max_tokens": 32,
    "stop_sequence": ".",
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    log_path = tmp_path_factory.mktemp("mock") / "log"
    with served(log_path, MOCK_APP, MAX_INPUT_QSIZE=128) as api:
        yield api


def test_every_token_arrives_while_the_next_is_still_to_come(
    held_api: ServedApi, release_file: Path
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", held_api.port, timeout=TIMEOUT_S)
    body = json.dumps({"text": "token by token", "max_tokens": 14})
    connection.request("POST", "/inference", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.headers["Transfer-Encoding"] == "chunked"
    chunks = iter(lambda: response.read1(65536), b"")
    assert next(chunks) == b"t"
    eventually(lambda: held_api.state()["busy_rows"] == 1)
    release_file.touch()
    assert b"".join(chunks) == b"oken by token"
    connection.close()


@pytest.mark.parametrize("body", [PARIS, AUSTIN, NUMBER], ids=["paris", "austin", "number"])
def test_documented_bodies_are_answered(api: ServedApi, body: dict[str, object]) -> None:
    response = api.post("/inference/falcon40b", **body)
    assert response.status_code == 200
    assert response.text
    assert str(body["text"]).startswith(response.text)


def test_headers_of_a_stream(api: ServedApi) -> None:
    response = requests.post(
        f"{api.url}/inference",
        json={"text": "x", "session_id": "mine"},
        headers={"X-Request-Id": "abc-1"},
        timeout=TIMEOUT_S,
    )
    assert response.headers["X-Session-Id"] == "mine"
    assert response.headers["X-Request-Id"] == "abc-1"
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Accel-Buffering"] == "no"


def test_session_id_in_use_is_not_given_twice(slow_api: ServedApi) -> None:
    with slow_api.open_stream(text="a" * 900, max_tokens=900, session_id="one") as first:
        assert first.headers["X-Session-Id"] == "one"
        second = slow_api.open_stream(text="b", session_id="one")
        assert second.headers["X-Session-Id"] != "one"
        assert second.text == "b"


def test_stop_sequence_is_cut_out_of_the_text(api: ServedApi) -> None:
    assert api.post(text="one two three", stop_sequence="two").text == "one "
    assert api.post(text="one two three", stop_sequence=["three", "wo t"]).text == "one t"


def test_prompt_is_returned_on_request(api: ServedApi) -> None:
    assert api.post(text="ab", return_prompt="true", max_tokens=1).text == "aba"


def test_a_control_word_of_old_is_just_a_prompt(api: ServedApi) -> None:
    assert api.post(text="<|stop|>").text == "<|stop|>"


def test_chat_sends_cumulative_events(api: ServedApi) -> None:
    response = api.post("/chat/falcon40b", text="hi", max_tokens=3)
    assert response.headers["Content-Type"].startswith("text/event-stream")
    events = [block.split("\n") for block in response.text.strip().split("\n\n")]
    names = [name.removeprefix("event: ") for name, _ in events]
    messages = [json.loads(data.removeprefix("data: "))["message"] for _, data in events]
    assert names == ["answer", "answer", "answer", "close"]
    assert messages == ["U", "Us", "Use", "Connection closed"]


def test_128_clients_at_once_each_get_their_own_text(api: ServedApi) -> None:
    texts = [f"client {number} says hello" for number in range(128)]
    with ThreadPoolExecutor(128) as pool:
        responses = list(pool.map(lambda text: api.post(text=text), texts))
    assert [response.status_code for response in responses] == [200] * 128
    assert [response.text for response in responses] == texts
    eventually(api.is_idle)


def test_99_requests_10_ms_apart_are_all_answered(api: ServedApi) -> None:
    never = Event()
    texts = [f"request {number} " * 5 for number in range(99)]
    with ThreadPoolExecutor(99) as pool:
        futures = []
        for text in texts:
            futures.append(pool.submit(api.post, text=text))
            never.wait(0.01)
        assert [future.result().text for future in futures] == texts
    eventually(api.is_idle)


def test_health_answers_while_every_row_and_queue_place_is_taken(narrow_api: ServedApi) -> None:
    with narrow_api.open_stream(text="a" * 2000, max_tokens=2000):
        waiting = narrow_api.send_raw(post_bytes("/inference", b'{"text": "b"}'))
        eventually(lambda: narrow_api.state()["queued"] == 1)
        assert requests.get(f"{narrow_api.url}/health", timeout=TIMEOUT_S).text == "OK"
        waiting.close()


def test_client_that_leaves_its_stream_frees_its_row(narrow_api: ServedApi) -> None:
    before = narrow_api.state()["totals"]["generated_tokens"]
    stream = narrow_api.open_stream(text="x" * 2000, max_tokens=2000)
    assert narrow_api.state()["busy_rows"] == 1
    stream.close()
    eventually(narrow_api.is_idle)
    assert narrow_api.state()["totals"]["generated_tokens"] - before < 2000


def test_client_that_leaves_the_queue_is_forgotten_at_once(narrow_api: ServedApi) -> None:
    with narrow_api.open_stream(text="x" * 2000, max_tokens=2000):
        waiting = narrow_api.send_raw(post_bytes("/inference", b'{"text": "b"}'))
        eventually(lambda: narrow_api.state()["queued"] == 1)
        waiting.close()
        eventually(lambda: narrow_api.state()["sessions"] == 1)
        state = narrow_api.state()
        assert (state["queued"], state["busy_rows"]) == (0, 1)
    eventually(narrow_api.is_idle)


def test_overload_is_refused_and_what_was_accepted_is_not_lost(tmp_path: Path) -> None:
    settings = {"USER_ROWS": 2, "MAX_INPUT_QSIZE": 4, "MOCK_TOKENS_PER_SECOND": 20}
    texts = [f"number {number:02d}" for number in range(40)]
    with served(tmp_path / "log", MOCK_APP, **settings) as api:
        with ThreadPoolExecutor(40) as pool:
            responses = list(pool.map(lambda text: api.post(text=text), texts))
        refused = [response for response in responses if response.status_code == 503]
        answered = {text: r.text for text, r in zip(texts, responses, strict=True) if r.ok}
        eventually(api.is_idle)
    assert len(refused) + len(answered) == 40
    assert len(answered) >= 6
    assert refused
    assert all(text == answer for text, answer in answered.items())
    for response in refused:
        assert response.json()["message"] == "Service overloaded, try again later."
        assert int(response.headers["Retry-After"]) >= 1


def test_early_next_request_on_the_same_connection_is_answered(api: ServedApi) -> None:
    one = post_bytes("/inference", b'{"text": "first"}')
    two = post_bytes("/inference", b'{"text": "second"}')
    client = api.send_raw(one + two)
    received = b""
    while received.count(b"\r\n0\r\n\r\n") < 2:
        received += client.recv(65536)
    client.close()
    assert received.count(b"200 OK") == 2


def test_end_marker_closes_a_raw_stream(tmp_path: Path) -> None:
    with served(tmp_path / "log", MOCK_APP, STREAM_END_MARKER="<|endoftext|>") as api:
        assert api.post(text="ab").text == "ab<|endoftext|>"
