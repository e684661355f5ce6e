"""Who drafts for a request, as its field says, and what its answer says of the drafts."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from threading import Thread
from typing import Any

import pytest
from flask.testing import FlaskClient

from inference_api._mock_inference_api_server import create_test_server
from inference_api.inference_api_server import server_of
from inference_api.settings import Settings
from lab.kit.servers import eventually
from tests.inference_api.in_process import started

MODEL = "hearth-tiny"
REPEATING = "again and again and again and "  # what the mock echoes, so that prompt lookup is right
ROUTES: dict[str, dict[str, Any]] = {
    "/inference": {"text": REPEATING},
    "/predictions/hearth-tiny": {"text": REPEATING},
    "/chat/hearth-tiny": {"text": REPEATING},
    "/v1/completions": {"model": MODEL, "prompt": REPEATING, "max_tokens": 30},
    "/v1/chat/completions": {
        "model": MODEL,
        "messages": [{"role": "user", "content": REPEATING}],
    },
}
COMPLETION = ROUTES["/v1/completions"]
OPENAI = [route for route in ROUTES if route.startswith("/v1")]


def served(**settings: Any) -> AbstractContextManager[FlaskClient]:
    asked = {"mock_tokens_per_second": 1e6, **settings}
    return started(create_test_server(Settings.model_validate(asked)))


@pytest.fixture(scope="module")
def drafting() -> Iterator[FlaskClient]:
    with served(speculation="ngram") as client:
        yield client


@pytest.fixture(scope="module")
def plain() -> Iterator[FlaskClient]:
    with served(speculation="off") as client:
        yield client


def refusal(client: FlaskClient, route: str, body: object) -> Any:
    response = client.post(route, json=body)
    assert response.status_code == 400, response.text
    return response.get_json()["error"]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("speculation", [None, "auto", "off", "ngram"])
def test_every_route_takes_what_the_model_has(
    drafting: FlaskClient, route: str, speculation: str | None
) -> None:
    with drafting.post(route, json={**ROUTES[route], "speculation": speculation}) as response:
        assert response.status_code == 200
        assert "again and again" in response.get_data(as_text=True)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("speculation", ["auto", "off"])
def test_a_server_without_drafts_takes_auto_and_off(
    plain: FlaskClient, route: str, speculation: str
) -> None:
    with plain.post(route, json={**ROUTES[route], "speculation": speculation}) as response:
        assert response.status_code == 200


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("speculation", ["medusa", "draft"])
def test_who_is_not_there_is_refused_with_who_is(
    drafting: FlaskClient, route: str, speculation: str
) -> None:
    error = refusal(drafting, route, {**ROUTES[route], "speculation": speculation})
    assert error["param"] == "speculation"
    needed = {"medusa": "SPECULATION=medusa", "draft": "SPECULATION=draft and a DRAFT_MODEL"}
    assert error["message"] == (
        f"speculation: is '{speculation}', which hearth-tiny is served without; give one of "
        f"'auto', 'off', 'ngram', or start the server with {needed[speculation]}."
    )


def test_a_server_without_drafts_refuses_every_source(plain: FlaskClient) -> None:
    error = refusal(plain, "/v1/completions", {**COMPLETION, "speculation": "ngram"})
    assert "give one of 'auto', 'off', or start the server with SPECULATION=ngram" in str(error)


@pytest.mark.parametrize(
    "speculation",
    ["OFF", "off ", "eagle", "x" * 100_000, "\x00", 0, 1, True, False, 1.5, [], ["off"], {}],
)
@pytest.mark.parametrize("route", ROUTES)
def test_what_is_no_name_is_refused(drafting: FlaskClient, route: str, speculation: object) -> None:
    error = refusal(drafting, route, {**ROUTES[route], "speculation": speculation})
    assert error["param"] == "speculation"
    assert "speculation" in error["message"]
    assert len(error["message"]) < 200
    if isinstance(speculation, str) or route in OPENAI:
        assert "give 'auto', 'off', 'ngram', 'medusa', 'mtp' or 'draft'" in error["message"]
    else:
        assert "expected string" in error["message"]


def test_a_refused_batch_runs_nothing(drafting: FlaskClient) -> None:
    body = {**COMPLETION, "prompt": [REPEATING] * 8, "n": 4, "echo": True, "speculation": "medusa"}
    before = drafting.get("/ready").get_json()["totals"]
    assert refusal(drafting, "/v1/completions", body)["param"] == "speculation"
    ready = drafting.get("/ready").get_json()
    assert (ready["sessions"], ready["queued"], ready["busy_rows"]) == (0, 0, 0)
    assert ready["totals"] == before


def test_a_stream_is_refused_before_it_begins(drafting: FlaskClient) -> None:
    body = {**COMPLETION, "stream": True, "speculation": "draft"}
    assert refusal(drafting, "/v1/completions", body)["param"] == "speculation"


@pytest.mark.parametrize("route", ROUTES)
def test_the_field_reaches_the_row(route: str) -> None:
    with served(speculation="ngram", mock_tokens_per_second=50) as client:

        def ask() -> None:
            body = {**ROUTES[route], "speculation": "off"}
            with client.post(route, json=body) as response:
                assert response.status_code == 200
                assert response.get_data()

        asking = Thread(target=ask)
        asking.start()
        backend = server_of(client.application).backend
        row = eventually(lambda: next((user for user in backend.users if user), None))
        assert row.request.params.speculation == "off"
        asking.join(60)


def test_usage_tells_what_was_accepted_at_each_depth(drafting: FlaskClient) -> None:
    usage = drafting.post("/v1/completions", json=COMPLETION).get_json()["usage"]
    by_depth = usage["acceptance_by_depth"]
    assert 0 < usage["acceptance_rate"] <= 1 < usage["tokens_per_step"]
    assert 1 <= len(by_depth) <= 8
    assert all(0 <= share <= 1 for share in by_depth)
    assert by_depth[0] > 0


@pytest.mark.parametrize("continuous", [False, True])
def test_streamed_usage_tells_it_too(drafting: FlaskClient, continuous: bool) -> None:
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    body = {**COMPLETION, "stream": True, "stream_options": options}
    with drafting.post("/v1/completions", json=body) as response:
        lines = response.get_data(as_text=True).split("\n\n")
    events = [
        json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")
    ]
    usages = [event["usage"] for event in events if event.get("usage")]
    assert len(usages) == (len(events) if continuous else 1)
    whole = drafting.post("/v1/completions", json=COMPLETION).get_json()["usage"]
    for name in ("acceptance_rate", "tokens_per_step", "acceptance_by_depth"):
        assert usages[-1][name] == whole[name]


def test_without_drafts_usage_has_no_depths(plain: FlaskClient) -> None:
    usage = plain.post("/v1/completions", json=COMPLETION).get_json()["usage"]
    assert usage["acceptance_rate"] is None
    assert not usage.keys() & {"tokens_per_step", "acceptance_by_depth"}


def test_several_choices_have_counts_only(drafting: FlaskClient) -> None:
    body = {**COMPLETION, "n": 2, "echo": True, "speculation": "ngram"}
    answer = drafting.post("/v1/completions", json=body).get_json()
    assert len(answer["choices"]) == 2
    assert "acceptance_by_depth" not in answer["usage"]


def test_depths_add_up_to_the_tokens_in_the_metrics(drafting: FlaskClient) -> None:
    drafting.post("/v1/completions", json=COMPLETION)
    lines = drafting.get("/metrics").text.splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))

    def total(name: str) -> float:
        return sum(float(value) for key, value in samples.items() if key.startswith(f"{name}{{"))

    for kind in ("drafted", "accepted"):
        tokens = total(f"inference_{kind}_tokens_total")
        assert tokens == total(f"inference_{kind}_tokens_by_depth_total") > 0
    accepted = total("inference_accepted_tokens_total")
    assert total("vllm:spec_decode_num_accepted_tokens_per_pos_total") == accepted
    assert total("inference_accepted_tokens_per_draft_sum") == accepted
    drafts = total("inference_drafts_total")
    assert total("inference_accepted_tokens_per_draft_count") == drafts
