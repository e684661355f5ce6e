"""The page's addresses without a browser: who gets what at `/`, caching, and the polled state."""

import re
from collections.abc import Iterator
from threading import Thread
from typing import Any

import jwt
import pytest
from flask.testing import FlaskClient

from inference_api._mock_inference_api_server import create_test_server
from inference_api.core.status import ModelSnapshot, Snapshot
from inference_api.inference_api_server import create_server, server_of
from inference_api.settings import ModelSettings, Settings
from lab.kit.servers import eventually
from optimizer.settings import Settings as OptimizerSettings
from tests.inference_api.in_process import started
from tests.ports import free_port

SECRET = "a secret that is long enough for HS256"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    app = create_test_server(Settings(mock_tokens_per_second=100, max_seq_len=600))
    with started(app) as client:
        yield client


def state_of(client: FlaskClient) -> Any:
    return client.get("/dashboard/state").get_json()


@pytest.mark.parametrize("accept", [None, "*/*", "text/plain", "application/json", "image/*"])
def test_probes_and_scripts_get_the_health_text(client: FlaskClient, accept: str | None) -> None:
    response = client.get("/", headers={"Accept": accept} if accept else {})
    assert (response.status_code, response.text) == (200, "OK")
    assert "Accept" in response.vary


@pytest.mark.parametrize("accept", [BROWSER, "text/html", "text/html;q=0.9, text/plain;q=0.5"])
def test_browsers_get_the_page(client: FlaskClient, accept: str) -> None:
    response = client.get("/", headers={"Accept": accept})
    assert response.content_type == "text/html; charset=utf-8"
    assert "Accept" in response.vary
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_dead_decode_thread_fails_probes_and_still_shows_the_page() -> None:
    app = create_server(Settings())
    server_of(app).backend.stop()
    server_of(app).backend._fail(RuntimeError("out of memory"))
    client = app.test_client()
    assert client.get("/").status_code == 500
    assert client.get("/", headers={"Accept": BROWSER}).status_code == 200
    assert "out of memory" in state_of(client)["server"]["reason"]


def test_requests_that_have_paused_are_counted() -> None:
    app = create_server(Settings())
    server_of(app).backend.snapshot = Snapshot(0.0, {"m": ModelSnapshot(busy_rows=2, paused=3)})
    client = app.test_client()
    assert state_of(client)["queue"] == {"waiting": 0, "paused": 3, "capacity": 64}
    ready = client.get("/ready").get_json()
    assert (ready["busy_rows"], ready["queued"], ready["paused"]) == (2, 3, 3)


def test_an_unchanged_page_is_not_sent_again(client: FlaskClient) -> None:
    first = client.get("/", headers={"Accept": BROWSER})
    assert first.headers["Cache-Control"] == "no-cache"
    again = client.get("/", headers={"Accept": BROWSER, "If-None-Match": first.headers["ETag"]})
    assert again.status_code == 304


def test_files_of_the_page_may_be_kept_for_ever(client: FlaskClient) -> None:
    page = client.get("/", headers={"Accept": BROWSER}).text
    paths = set(re.findall(r'(?:src|href)="(/dashboard/assets/[^"]+)"', page))
    assert len(paths) == 4
    for path in paths:
        response = client.get(path)
        assert response.status_code == 200
        assert "immutable" in response.headers["Cache-Control"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert {client.get(path).mimetype for path in paths} == {
        "text/javascript",
        "text/css",
        "image/svg+xml",
    }


def test_files_of_another_version_and_other_files_are_not_found(client: FlaskClient) -> None:
    page = client.get("/", headers={"Accept": BROWSER}).text
    (path,) = re.findall(r'src="(/dashboard/assets/[^"]+app\.js)"', page)
    version = path.split("/")[3]
    assert client.get(path.replace(version, "0" * 12)).status_code == 404
    for name in ("index.html", "..%2froutes%2fdashboard.py", "nothing.js"):
        assert client.get(f"/dashboard/assets/{version}/{name}").status_code == 404


def test_an_idle_server_has_free_rows_and_no_observations() -> None:
    state = state_of(create_server(Settings()).test_client())
    assert state["rows"] == [None] * 32
    assert state["queue"] == {"waiting": 0, "paused": 0, "capacity": 64}
    assert state["server"]["phase"] == "loading"
    assert state["server"]["models"] == []
    assert state["kv_cache"] == {}
    assert state["latencies"]["ttft"] == {"buckets": [], "sum_s": 0.0}


def test_a_busy_row_tells_whose_it_is_and_how_far(client: FlaskClient) -> None:
    def ask() -> None:
        body = {"text": "x" * 250, "max_tokens": 200, "session_id": "conversation"}
        headers = {"X-Team-Id": "search", "X-Request-Id": "request-7"}
        with client.application.test_client().post(
            "/inference", json=body, headers=headers
        ) as response:
            assert response.get_data(as_text=True) == "x" * 200

    asking = Thread(target=ask)
    asking.start()
    row = eventually(lambda: next((r for r in state_of(client)["rows"] if r), None))
    assert (row["team_id"], row["request_id"]) == ("search", "request-7")
    assert row["session_id"] == "conversation"
    assert (row["prompt_tokens"], row["token_limit"]) == (250, 200)
    assert row["phase"] in ("queued", "prefill", "decode")
    assert row["generated_tokens"] <= 200
    eventually(lambda: any(r and r["phase"] == "decode" for r in state_of(client)["rows"]))
    asking.join(60)
    eventually(lambda: state_of(client)["rows"] == [None] * 32)


def test_latencies_and_counts_are_those_of_the_metrics(client: FlaskClient) -> None:
    before = state_of(client)
    with client.post("/inference", json={"text": "abc"}) as response:
        assert response.get_data(as_text=True) == "abc"
    assert client.post("/inference", json={}).status_code == 400
    after = state_of(client)
    assert after["finished"]["stop"] == before["finished"].get("stop", 0) + 1
    buckets = after["latencies"]["ttft"]["buckets"]
    assert buckets[-1][0] is None
    assert [number for _, number in buckets] == sorted(number for _, number in buckets)
    assert sum(after["finished"].values()) == buckets[-1][1]
    assert after["latencies"]["ttft"]["sum_s"] > 0
    assert after["errors"]["invalid_request"] >= 1
    assert after["totals"]["generated_tokens"] >= before["totals"]["generated_tokens"] + 3


def test_the_last_requests_are_told_without_their_texts(client: FlaskClient) -> None:
    headers = {"X-Team-Id": "search", "X-Request-Id": "told-1"}
    with client.post("/inference", json={"text": "abc"}, headers=headers) as response:
        assert response.get_data(as_text=True) == "abc"
    headers["X-Request-Id"] = "told-2"
    refused = client.post(
        "/v1/completions", json={"model": "hearth-tiny", "prompt": "x" * 700}, headers=headers
    )
    assert refused.status_code == 400
    told = client.get("/dashboard/requests")
    assert told.headers["Cache-Control"] == "no-store"
    last, before = told.get_json()[:2]
    assert (last["request_id"], last["status"], last["error"]) == (
        "told-2", 400, "context_length_exceeded"
    )  # fmt: skip
    assert (last["route"], last["prompt_tokens"]) == ("/v1/completions", None)
    assert (before["request_id"], before["team_id"]) == ("told-1", "search")
    assert (before["route"], before["model"]) == ("/inference", "hearth-tiny")
    assert (before["prompt_tokens"], before["completion_tokens"]) == (3, 3)
    assert (before["finish_reason"], before["status"], before["error"]) == ("stop", 200, None)
    assert before["total_ms"] >= before["ttft_ms"] >= before["queue_ms"] >= 0
    assert "abc" not in told.text
    assert "xxx" not in told.text


def test_a_generation_that_fails_later_tells_its_error() -> None:
    with (
        started(create_test_server(Settings(mock_tokens_per_second=20))) as client,
        client.post("/inference", json={"text": "x" * 400}) as response,
    ):
        next(response.iter_encoded())
        server_of(client.application).stop()
        with pytest.raises(ConnectionResetError):
            response.get_data()
    (told,) = client.get("/dashboard/requests").get_json()
    assert (told["finish_reason"], told["status"], told["error"]) == ("error", 503, "draining")


def test_models_tell_what_serves_them(client: FlaskClient) -> None:
    assert create_server(Settings()).test_client().get("/dashboard/models").get_json() == []
    assert client.get("/dashboard/models").get_json() == [
        {"name": "hearth-tiny", "user_rows": 32, "context_tokens": 600, "speculation": [],
         "facts": None}
    ]  # fmt: skip


def test_a_cluster_is_told_where_one_is_named() -> None:
    assert create_server(Settings()).test_client().get("/dashboard/cluster").status_code == 404
    client = create_server(Settings(cluster_url=f"http://127.0.0.1:{free_port()}")).test_client()
    assert client.get("/dashboard/cluster").status_code == 503
    assert 'data-cluster="yes"' in client.get("/", headers={"Accept": BROWSER}).text


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://me:secret@a", "http://a/?b", "a:1"])
def test_odd_addresses_of_a_cluster_stop_the_start(url: str) -> None:
    with pytest.raises(ValueError, match="cluster_url"):
        Settings(cluster_url=url)


def test_latencies_and_counts_of_several_models_are_added_up() -> None:
    models = tuple(ModelSettings(model_name=name) for name in ("a", "b"))
    with started(create_test_server(Settings(models=models))) as client:
        for each in models:
            with client.post(f"/inference/{each.name}", json={"text": "abc"}) as response:
                assert response.get_data(as_text=True) == "abc"
        state = state_of(client)
    assert state["finished"] == {"stop": 2}
    buckets = state["latencies"]["ttft"]["buckets"]
    assert buckets[-1] == [None, 2]
    assert len({bound for bound, _ in buckets}) == len(buckets)


def test_drafts_are_told_of_each_model() -> None:
    models = tuple(ModelSettings(model_name=name, speculation="ngram") for name in ("a", "b"))
    with started(create_test_server(Settings(models=models))) as client:
        with client.post("/inference/b", json={"text": "a loop, a loop, a loop"}) as response:
            assert response.get_data(as_text=True) == "a loop, a loop, a loop"
        of_a, of_b = state_of(client)["speculation"].values()
    assert set(of_a.values()) == {0}
    assert 0 < of_b["accepted_tokens"] <= of_b["drafted_tokens"]
    # The last step draws the end, which is no token of the text.
    assert of_b["generated_tokens"] - of_b["accepted_tokens"] <= of_b["decoded_rows"]
    assert of_b["decoded_rows"] < of_b["generated_tokens"]


def test_the_page_needs_no_token_but_its_state_does() -> None:
    client = create_server(Settings(jwt_secret=SECRET)).test_client()
    page = client.get("/", headers={"Accept": BROWSER})
    assert page.status_code == 200
    (path,) = re.findall(r'src="(/dashboard/assets/[^"]+app\.js)"', page.text)
    assert client.get(path).status_code == 200
    assert client.get("/dashboard/state").status_code == 401
    token = jwt.encode({"team_id": "a"}, SECRET, algorithm="HS256")
    answer = client.get("/dashboard/state", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("stateful", [True, False])
def test_the_page_knows_how_the_optimizer_is_run(stateful: bool, tmp_path: Any) -> None:
    settings = OptimizerSettings(stateful=stateful, store_path=tmp_path / "optimizer.db")
    client = create_server(Settings(), settings).test_client()
    mode = "stateful" if stateful else "stateless"
    page = client.get("/", headers={"Accept": BROWSER}).text
    assert f'data-optimizer="{mode}"' in page
