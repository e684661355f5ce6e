"""A bundle of experts over HTTP, by real processes: gunicorn, and the proxy before it."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
import requests

from inference_api.settings import EMBEDDED_MODEL
from lab.kit.servers import ServedApi, eventually
from tests.e2e.bundles import FAST_MEMORY, FORMS, bundle_file
from tests.forked import served

PROMPTS = ("What is the capital of Kenya?", "Say 17 + 25.", "Tell me a story about a fox.")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    folder = tmp_path_factory.mktemp("bundle")
    with served(folder / "log", BUNDLE=bundle_file(folder), PACKED_FOLDER=folder / "packed") as api:
        yield api
        eventually(api.is_idle)


def complete(api: ServedApi, model: str, prompt: str, **fields: Any) -> requests.Response:
    body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 12, **fields}
    response = api.post("/v1/completions", **body)
    assert response.status_code == 200, response.text
    return response


def test_mixed_requests_are_answered_by_the_expert_they_name(
    api: ServedApi, tmp_path: Path
) -> None:
    models = [
        {"model": str(EMBEDDED_MODEL), "model_name": name, "quantization": form, "user_rows": 4}
        for name, form in FORMS.items()
    ]
    asked = [(name, prompt) for name in FORMS for prompt in PROMPTS]

    def text(api: ServedApi, each: tuple[str, str]) -> str:
        answer = complete(api, *each).json()
        assert answer["model"] == each[0]
        return str(answer["choices"][0]["text"])

    with served(tmp_path / "log", MODELS=json.dumps(models), MAX_SEQ_LEN="256") as together:
        alone = {each: text(together, each) for each in asked}
    mixed = Random(1).choices(asked, k=60)
    with ThreadPoolExecutor(8) as users:
        texts = list(users.map(lambda each: text(api, each), mixed))
    assert texts == [alone[each] for each in mixed]


def test_the_default_answers_who_names_no_expert(api: ServedApi) -> None:
    answer = api.post("/v1/completions", prompt="Hello", max_tokens=1).json()
    assert answer["model"] == next(iter(FORMS))


def test_request_that_paid_for_a_switch_is_told_so(api: ServedApi) -> None:
    complete(api, "eight", "Hello")
    paid = complete(api, "plain", "Hello")
    usage = paid.json()["usage"]
    assert usage["switching_time"] > 0
    assert usage["switch"]["initiator"] is True
    assert usage["switch"]["from"] == "eight"
    parts_s = sum(usage["switch"][part] for part in ("wait_s", "evict_s", "load_s"))
    assert usage["switching_time"] == pytest.approx(parts_s)
    assert int(paid.headers["X-Switching-Time-Ms"]) == round(1000 * usage["switching_time"])
    assert usage["time_to_first_token"] >= usage["switching_time"]
    unpaid = complete(api, "plain", "Hello")
    assert unpaid.json()["usage"]["switching_time"] == 0
    assert "X-Switching-Time-Ms" not in unpaid.headers
    streamed = complete(api, "eight", "Hello", stream=True)
    assert "X-Switching-Time-Ms" in streamed.headers


def test_experts_are_listed_with_their_state(api: ServedApi) -> None:
    for name in FORMS:
        complete(api, name, "Hello")
    cards = {card["id"]: card for card in api.get("/v1/models").json()["data"]}
    assert cards["plain"]["state"] == "resident"
    assert cards["plain"]["status"] == {"value": "loaded", "failed": False}
    assert cards["plain"]["description"] == "Made none."
    assert cards["plain"]["rows"] == {"min": 1, "max": 4}
    assert cards["plain"]["bytes"]["weights"] > 8_900_000
    assert cards["eight"]["status"]["value"] == "unloaded"
    assert cards["eight"]["bytes"] == {"weights": 0, "other": 0, "cache": 0}
    state = api.get("/bundle").json()
    assert state["limits"]["fast_memory_limit"] == FAST_MEMORY
    assert 8_900_000 < state["used"]["fast_memory"] <= FAST_MEMORY
    assert [expert["name"] for expert in state["experts"]] == [*FORMS]
    metrics = api.get("/metrics").text
    assert 'hearth:expert_state{model_name="plain",state="resident"} 1.0' in metrics
    assert 'hearth:expert_bytes{kind="weights",model_name="eight"} 0.0' in metrics
    shown = api.get("/dashboard/state").json()["bundle"]
    assert [expert["state"] for expert in shown["experts"]] == ["on_disk", "on_disk", "resident"]


def test_operators_load_and_unload(api: ServedApi) -> None:
    complete(api, "plain", "Hello")

    def state(name: str) -> str:
        return next(
            str(expert["state"])
            for expert in api.get("/bundle").json()["experts"]
            if expert["name"] == name
        )

    assert api.post("/bundle/load/plain").status_code == 200
    assert api.post("/bundle/unload/plain").status_code == 202
    eventually(lambda: state("plain") == "on_disk")
    assert api.post("/bundle/load/four").status_code == 202
    eventually(lambda: state("four") == "resident")


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/bundle/load/nobody", 404, "Model 'nobody' is not served here; served: eight, four"),
        ("/bundle/unload/nobody?drain", 404, "Model 'nobody' is not served here"),
        ("/bundle/unload/plain?now", 400, "Unloading takes ?drain or ?force, not ?now."),
        ("/bundle/unload/plain?drain&force", 400, "not ?drain&force."),
    ],
)
def test_refusals_say_what_to_do(api: ServedApi, path: str, status: int, message: str) -> None:
    response = api.post(path)
    assert response.status_code == status
    assert message in response.json()["message"]


def test_server_without_a_bundle_says_so(model_api: ServedApi) -> None:
    response = model_api.get("/bundle")
    assert response.status_code == 404
    assert "start it with BUNDLE" in response.json()["message"]
