"""What a bundle's operators, teams and clients may do to it at odd moments, by real processes."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, unquote

import pytest
import requests

from lab.kit.servers import MOCK_APP, TIMEOUT_S, ServedApi, eventually, post_bytes
from tests.e2e.bundles import bundle_file, expert
from tests.forked import served
from tests.proxy.support import ProxyProcess, bearer, running_proxy

UNICODE = "sums/和 50%"
EXPERTS = [
    expert("quick", pinned=True, description="cities, countries, animals, stories"),
    expert(UNICODE, "int8", description="numbers, plus, minus, times"),
    expert("plain", "none", description="letters, poems"),
]
SUM = "numbers: plus, minus, times"
SLOW_LOADS = "tests.e2e.altered_servers:create_slow_loading_server()"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    folder = tmp_path_factory.mktemp("edges")
    file = bundle_file(folder, EXPERTS, fast_memory_limit="22MiB", router={})
    with served(folder / "log", BUNDLE=file, PACKED_FOLDER=folder / "packed") as api:
        yield api
        eventually(api.is_idle)


@pytest.fixture
def slow_to_load(tmp_path: Path, release_file: Path) -> Iterator[ServedApi]:
    """Its experts, but for `quick`, come once `release_file` is there."""
    file = bundle_file(tmp_path, EXPERTS[:2])
    settings: dict[str, Any] = {"PACKED_FOLDER": tmp_path / "packed", "DRAIN_TIMEOUT": 2}
    with served(
        tmp_path / "log", SLOW_LOADS, BUNDLE=file, RELEASE_FILE=release_file, **settings
    ) as api:
        yield api


def complete(api: ServedApi, model: str, prompt: str = "Hello", **fields: Any) -> requests.Response:
    body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 8, **fields}
    return api.post("/v1/completions", **body)


def state_of(api: ServedApi, name: str) -> Any:
    experts = api.get("/bundle").json()["experts"]
    return next(each for each in experts if each["name"] == name)


def is_loading(api: ServedApi) -> bool:
    return bool(state_of(api, UNICODE)["state"] == "loading")


# --- who may do what, through the proxy ---------------------------------------------------------

POLICY = f"""
teams:
  choosy: {{models: [quick]}}
  routed: {{models: [auto]}}
  sums: {{models: ["{UNICODE}"]}}
"""


@pytest.fixture(scope="module")
def proxy(api: ServedApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    folder = tmp_path_factory.mktemp("proxy")
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    with running_proxy(folder, api.url, POLICY_FILE=str(policy)) as proxy:
        yield proxy


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/bundle", {"viewer", "operator"}),
        ("POST", "/bundle/load/quick", {"operator"}),
        ("POST", f"/bundle/load/{quote(UNICODE, safe='')}", {"operator"}),
        ("POST", "/bundle/unload/plain?drain", {"operator"}),
        ("POST", "/bundle/validate", {"operator"}),
        ("GET", "/v1/models", {"team", "viewer", "operator"}),
    ],
)
def test_teams_see_experts_and_operators_move_them(
    proxy: ProxyProcess, method: str, path: str, allowed: set[str]
) -> None:
    for role in ("team", "viewer", "operator"):
        body = {"bundle": "version: 1"} if path.endswith("validate") else None
        answer = requests.request(
            method, proxy.url + path, json=body, headers=bearer(role=role), timeout=TIMEOUT_S
        )
        if role in allowed:
            assert answer.status_code in (200, 202), answer.text
        else:
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "role_needed")


@pytest.mark.parametrize(
    ("team", "model", "status"),
    [
        ("choosy", "quick", 200),
        ("choosy", "auto", 403),
        ("choosy", UNICODE, 403),
        ("routed", "auto", 200),
        ("routed", "quick", 403),
        ("sums", UNICODE, 200),
        ("sums", "sums", 403),
        ("anybody", "auto", 200),
        ("anybody", UNICODE, 200),
    ],
)
def test_router_leads_nobody_past_the_list_of_their_models(
    proxy: ProxyProcess, team: str, model: str, status: int
) -> None:
    headers = bearer(team_id=team, role="team")
    asked = [
        (f"/inference/{quote(model)}", {"text": SUM}),
        ("/v1/completions", {"model": model, "prompt": SUM}),
    ]
    for path, body in asked:
        answer = requests.post(
            proxy.url + path, json=body | {"max_tokens": 4}, headers=headers, timeout=TIMEOUT_S
        )
        assert answer.status_code == status, answer.text
        if model == "auto" and status == 200:
            assert unquote(answer.headers["X-Routed-To"]) == UNICODE


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (quote(UNICODE), 202),
        (quote(UNICODE, safe=""), 202),
        ("quick", 200),
        ("quick/", 404),
        ("%00", 404),
        ("%ff%fe", 404),
        ("quick%0a", 404),
        (quote("é" * 500), 404),
        ("x" * 10_000, 414),
    ],
)
def test_odd_names_are_found_or_refused(api: ServedApi, path: str, status: int) -> None:
    eventually(lambda: api.post(f"/bundle/unload/{quote(UNICODE)}?drain").status_code == 202)
    eventually(lambda: state_of(api, UNICODE)["state"] in ("absent", "on_disk"))
    assert api.post(f"/bundle/load/{path}").status_code == status
    assert api.get("/health").text == "OK"


# --- auto ---------------------------------------------------------------------------------------


def test_stream_says_who_was_chosen(api: ServedApi) -> None:
    body = {"model": "auto", "messages": [{"role": "user", "content": SUM}], "max_tokens": 4}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    answer = api.post("/v1/chat/completions", **body, **options)
    assert unquote(answer.headers["X-Routed-To"]) == UNICODE
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(line) for line in lines[:-1]]
    assert lines[-1] == "[DONE]"
    assert {chunk["model"] for chunk in chunks} == {UNICODE}
    routed = chunks[-1]["usage"]["router"]
    assert (routed["expert"], routed["method"]) == (UNICODE, "tfidf")


def test_conversation_keeps_its_expert(api: ServedApi) -> None:
    turns = [SUM, "Well?", "letters, poems"]
    said = [{"role": "user", "content": turn} for turn in turns]
    answers = [
        api.post("/v1/chat/completions", model="auto", messages=said[:n], max_tokens=4).json()
        for n in (1, 2, 3)
    ]
    assert [answer["model"] for answer in answers] == [UNICODE] * 3


@pytest.mark.parametrize("route", ["inference", "predictions", "chat"])
def test_native_routes_are_routed_too(api: ServedApi, route: str) -> None:
    answer = api.post(f"/{route}/auto", text=SUM, max_tokens=4)
    assert answer.status_code == 200
    assert unquote(answer.headers["X-Routed-To"]) == UNICODE


def test_first_of_several_prompts_decides(api: ServedApi) -> None:
    answer = complete(api, "auto", ["letters, poems", SUM]).json()  # type: ignore[arg-type]
    assert answer["model"] == "plain"
    assert len(answer["choices"]) == 2


def test_nothing_to_go_by_is_the_fallbacks(api: ServedApi) -> None:
    message = {"role": "user", "content": ""}
    answer = api.post("/v1/chat/completions", model="auto", messages=[message], max_tokens=4)
    assert answer.json()["usage"]["router"]["method"] == "fallback"
    assert answer.json()["model"] == "quick"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [1, 2, 3]}),
        ("/v1/completions", {"prompt": [[1, 2], [3]]}),
        ("/v1/chat/completions", {"messages": [{"role": "system", "content": SUM}]}),
    ],
)
def test_router_needs_text_of_a_user(api: ServedApi, path: str, body: dict[str, Any]) -> None:
    answer = api.post(path, model="auto", **body)
    assert answer.status_code == 400
    assert "auto needs text" in answer.json()["message"]


def test_router_is_listed_as_a_model(api: ServedApi) -> None:
    assert [card["id"] for card in api.get("/v1/models").json()["data"]][-1] == "auto"
    assert api.get("/v1/models/auto").json()["id"] == "auto"


# --- while experts come and go ------------------------------------------------------------------


def test_operators_in_a_hurry_lose_no_request(api: ServedApi) -> None:
    names = [each["name"] for each in EXPERTS]
    alone = {name: complete(api, name).json()["choices"][0]["text"] for name in names}
    asked = Random(2).choices(names, k=60)
    orders = [
        f"/bundle/{order}"
        for name in names
        for order in (f"load/{quote(name)}", f"unload/{quote(name)}", f"unload/{quote(name)}?drain")
    ]
    with ThreadPoolExecutor(8) as users, ThreadPoolExecutor(4) as operators:
        answers = users.map(lambda name: complete(api, name), asked)
        replies = list(operators.map(api.post, Random(3).choices(orders, k=80)))
        assert [each.json()["choices"][0]["text"] for each in answers] == [
            alone[name] for name in asked
        ]
    assert {reply.status_code for reply in replies} <= {200, 202, 409}
    codes = {reply.json()["error"]["code"] for reply in replies if reply.status_code == 409}
    assert codes <= {"expert_pinned", "expert_busy", "expert_loading"}


def test_server_is_ready_and_serves_others_while_an_expert_loads(
    slow_to_load: ServedApi, release_file: Path
) -> None:
    api = slow_to_load
    with ThreadPoolExecutor(1) as client:
        waiting = client.submit(complete, api, UNICODE)
        eventually(lambda: is_loading(api))
        assert api.get("/ready").status_code == api.get("/health").status_code == 200
        assert complete(api, "quick").json()["usage"]["switching_time"] == 0
        assert state_of(api, UNICODE)["queue"] == 1
        assert api.post(f"/bundle/load/{quote(UNICODE)}").status_code == 202
        refusal = api.post(f"/bundle/unload/{quote(UNICODE)}?force")
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (409, "expert_loading")
        release_file.touch()
        assert waiting.result().json()["usage"]["switching_time"] > 0
    count = f'hearth:expert_switch_seconds_count{{model_name="{UNICODE}"}} 1.0'
    assert count in api.get("/metrics").text


def test_client_that_hangs_up_leaves_the_load_to_others(
    slow_to_load: ServedApi, release_file: Path
) -> None:
    api = slow_to_load
    body = json.dumps({"model": UNICODE, "prompt": "Hello"}).encode()
    client = api.send_raw(post_bytes("/v1/completions", body))
    eventually(lambda: is_loading(api))
    client.close()
    eventually(lambda: state_of(api, UNICODE)["queue"] == 0)
    release_file.touch()
    eventually(lambda: state_of(api, UNICODE)["state"] == "resident")
    assert complete(api, UNICODE).json()["usage"]["switching_time"] == 0
    eventually(api.is_idle)


def stop_by_signal(api: ServedApi) -> None:
    api.process.terminate()


def stop_by_route(api: ServedApi) -> None:
    assert api.post("/drain").status_code == 202


@pytest.mark.parametrize("stop", [stop_by_signal, stop_by_route])
def test_drain_ends_in_time_though_an_expert_loads(
    slow_to_load: ServedApi, stop: Callable[[ServedApi], None]
) -> None:
    api = slow_to_load
    with ThreadPoolExecutor(1) as client:
        waiting = client.submit(complete, api, UNICODE)
        eventually(lambda: is_loading(api))
        stop(api)
        eventually(lambda: api.state().get("status") == "draining")
        assert is_loading(api)  # operators still see it
        assert api.post("/bundle/load/quick").json()["error"]["code"] == "draining"
        answer = waiting.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert api.process.wait(TIMEOUT_S) == 0


def test_drain_serves_who_waits_for_a_load(slow_to_load: ServedApi, release_file: Path) -> None:
    api = slow_to_load
    with ThreadPoolExecutor(1) as client:
        waiting = client.submit(complete, api, UNICODE)
        eventually(lambda: is_loading(api))
        stop_by_route(api)
        release_file.touch()
        assert waiting.result().status_code == 200
    assert api.process.wait(TIMEOUT_S) == 0


def test_start_can_be_watched_and_ended(tmp_path: Path, release_file: Path) -> None:
    file = bundle_file(tmp_path, [expert("late", load="start")])
    settings = {"PACKED_FOLDER": tmp_path / "packed", "RELEASE_FILE": release_file}
    log = tmp_path / "log"
    with served(log, SLOW_LOADS, start_timeout_s=None, BUNDLE=file, **settings) as api:
        eventually(lambda: api.state().get("status") == "loading")
        eventually(lambda: api.get("/bundle").status_code == 200)
        assert state_of(api, "late")["state"] in ("absent", "loading")
        assert api.get("/ready").status_code == 503
        assert api.get("/health").status_code == 200
        assert complete(api, "late").json()["error"]["code"] == "not_ready"
        assert api.stop() == 0


# --- what fails ---------------------------------------------------------------------------------


def test_expert_that_fails_at_start_leaves_the_others_be(tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    experts = [expert("four", load="start"), expert("eight", "int8", load="start")]
    file = bundle_file(tmp_path, experts[:1])
    with served(tmp_path / "log", BUNDLE=file, PACKED_FOLDER=packed):
        (packed_four,) = packed.glob("*.hearth")
    packed_four.unlink()
    packed_four.mkdir()  # is in the way
    file = bundle_file(tmp_path, experts)
    with served(tmp_path / "log", BUNDLE=file, PACKED_FOLDER=packed) as api:
        assert complete(api, "eight").status_code == 200
        refusal = complete(api, "four")
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "expert_failed")
        assert "four failed:" in refusal.json()["message"]
        assert "PACKED_FOLDER" in state_of(api, "four")["reason"]
        assert api.get("/v1/models/four").json()["status"] == {"value": "unloaded", "failed": True}
        packed_four.rmdir()
        assert api.post("/bundle/load/four").status_code == 202
        eventually(lambda: complete(api, "four").status_code == 200)


def test_start_fails_where_nothing_comes(tmp_path: Path) -> None:
    (tmp_path / "packed").write_text("a file")
    file = bundle_file(tmp_path, [expert("four", pinned=True), expert("eight", "int8")])
    settings: dict[str, Any] = {"BUNDLE": file, "PACKED_FOLDER": tmp_path / "packed" / "folder"}
    with served(tmp_path / "log", start_timeout_s=None, **settings) as api:
        assert api.process.wait(TIMEOUT_S) == 3
        assert "another PACKED_FOLDER" in api.log
        assert "Traceback" not in api.log


# --- the mock -----------------------------------------------------------------------------------


def test_mock_has_the_names_of_a_bundle_and_no_experts(tmp_path: Path) -> None:
    file = bundle_file(tmp_path, EXPERTS, fast_memory_limit="22MiB", router={})
    with served(tmp_path / "log", MOCK_APP, BUNDLE=file) as api:
        for answer in (api.get("/bundle"), api.post("/bundle/load/quick")):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_bundle")
            assert "mock" in answer.json()["message"]
        names = [card["id"] for card in api.get("/v1/models").json()["data"]]
        assert set(names) >= {"quick", UNICODE, "plain", "auto"}
        answer = complete(api, "auto", SUM, max_tokens=4).json()
        assert (answer["model"], answer["choices"][0]["text"]) == (UNICODE, SUM[:4])
        assert api.state()["status"] == "ready"
        assert "hearth:expert_state" in api.get("/metrics").text
        state = api.get("/dashboard/state").json()
        assert (state["bundle"], len(state["rows"])) == (None, 32)
