"""Which web pages may use the API: Host, Origin, bodies, and CORS."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from inference_api.errors import StartupError
from inference_api.inference_api_server import create_server
from inference_api.settings import Settings, load_settings
from optimizer.settings import Settings as OptimizerSettings
from proxy.access.roles import Role, needed_role
from weights.settings import Settings as WeightsSettings

BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64)"}
PAGE = "http://chat.example"


@pytest.fixture(scope="module", autouse=True)
def _never_ends_its_parent() -> Iterator[None]:
    """Which a drain would, were it let in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("inference_api.inference_api_server._end_arbiter", lambda: None)
        yield


def make_client(path: Path, **settings: Any) -> FlaskClient:
    optimizer = OptimizerSettings(stateful=True, store_path=path / "optimizer.db")
    weights = WeightsSettings(db_path=path / "weights.db")
    app: Flask = create_server(Settings(**settings), optimizer, weights)
    return app.test_client()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    return make_client(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def closed_client(tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    return make_client(tmp_path_factory.mktemp("closed"), cors_origins="none")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:7000", "evil.example.", "127.0.0.1.evil.example",
        "a_b.evil.com",
        "localhost.evil.com", "svc.evil.com", "xlocal.com", "[::1].evil.com", ".",
        "evil.com:localhost", "evil.com@localhost.evil.com",
    ],
)  # fmt: skip
def test_other_names_are_refused_with_the_setting_that_allows_them(
    client: FlaskClient, host: str
) -> None:
    for response in (
        client.get("/dashboard/state", headers={"Host": host}),
        client.post("/drain", headers={"Host": host}),
    ):
        assert response.status_code == 403
        assert response.get_json()["error"]["code"] == "host_not_allowed"
        assert "ALLOWED_HOSTS" in response.get_json()["message"]


def test_listed_hosts_and_the_one_listened_on_are_ours(tmp_path: Path) -> None:
    client = make_client(tmp_path, allowed_hosts="llm.example.org", service_host="Box.example.org")
    for host, status in (("LLM.example.org:7000", 200), ("box.example.org", 200), ("a.org", 403)):
        assert client.get("/speed", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
    ],
)
def test_pages_of_others_change_nothing(
    closed_client: FlaskClient, headers: dict[str, str]
) -> None:
    for method, path in [
        ("POST", "/drain"), ("PUT", "/state"), ("POST", "/optimizeOne"), ("POST", "/weights_gen"),
        ("DELETE", "/weights/sessions/x"), ("POST", "/inference"), ("POST", "/v1/chat/completions"),
    ]:  # fmt: skip
        response = closed_client.open(path, method=method, headers=headers, json={})
        assert response.status_code == 403, (method, path)
        assert response.get_json()["error"]["code"] == "origin_not_allowed"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://localhost"},
        {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Mode": "cors"},  # Node's fetch
    ],
)
def test_own_page_and_other_clients_may(client: FlaskClient, headers: dict[str, str]) -> None:
    assert client.post("/setCapacities", json={}, headers=headers).status_code == 200
    assert client.get("/state", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""],
)
def test_body_that_any_page_can_send_is_refused(client: FlaskClient, content_type: str) -> None:
    for path in ("/drain", "/setCapacities", "/weights_gen", "/optimizeOne"):
        response = client.post(path, data=b"{}", content_type=content_type)
        assert response.status_code == 415, path
        assert "application/json" in response.get_json()["message"]


def test_every_get_that_changes_something_is_closed_to_browsers_and_no_other(
    client: FlaskClient,
) -> None:
    paths: dict[str, Any] = client.get("/openapi.json").get_json()["paths"]
    for path in (path for path, verbs in paths.items() if "get" in verbs):
        role = needed_role("GET", path)
        named = path.replace("{", "").replace("}", "")
        for headers in (
            BROWSER, {"Sec-Fetch-Site": "same-origin"}, {"Origin": "http://localhost"},
        ):  # fmt: skip
            is_refused = client.get(named, headers=headers).status_code == 403
            assert is_refused == (role is Role.OPERATOR), (path, headers)
        assert client.get(named).status_code != 403


def preflight(client: FlaskClient, path: str, origin: str) -> Any:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"}
    return client.options(path, headers={"Origin": origin} | asked)


LOCAL_PAGE = "http://localhost:5173"


def test_local_pages_may_use_the_inference_routes_by_default(client: FlaskClient) -> None:
    for path in ("/v1/chat/completions", "/v1/messages", "/inference", "/v1/embeddings"):
        allowed = preflight(client, path, LOCAL_PAGE)
        assert allowed.status_code == 204
        assert allowed.headers["Access-Control-Allow-Origin"] == LOCAL_PAGE
    for path in ("/drain", "/weights_update", "/optimizeOne", "/bundle/load/a"):
        assert preflight(client, path, LOCAL_PAGE).status_code == 403
        assert client.post(path, headers={"Origin": LOCAL_PAGE}).status_code == 403
    state = client.get("/dashboard/state", headers={"Origin": LOCAL_PAGE})
    assert "Access-Control-Allow-Origin" not in state.headers


def test_local_pages_are_others_where_they_are_not_listed(tmp_path: Path) -> None:
    for setting in ("none", PAGE):
        client = make_client(tmp_path, cors_origins=setting)
        assert preflight(client, "/v1/chat/completions", LOCAL_PAGE).status_code == 403


def test_no_other_origin_is_allowed_by_default(client: FlaskClient) -> None:
    response = preflight(client, "/v1/chat/completions", PAGE)
    assert response.status_code == 403
    assert "CORS_ORIGINS" in response.get_json()["message"]
    assert "Access-Control" not in str(response.headers)
    assert "Access-Control-Allow-Origin" not in client.get("/v1/models").headers


@pytest.mark.parametrize(("setting", "answer"), [(f"http://a.example, {PAGE}", PAGE), ("*", "*")])
def test_listed_pages_may_use_the_inference_routes(
    tmp_path: Path, setting: str, answer: str
) -> None:
    secret = "a secret that is long enough for HS256"
    client = make_client(tmp_path, cors_origins=setting, jwt_secret=secret)
    allowed = preflight(client, "/v1/chat/completions", PAGE)
    assert allowed.status_code == 204
    assert allowed.headers["Access-Control-Allow-Origin"] == answer
    assert "Authorization" in allowed.headers["Access-Control-Allow-Headers"]
    assert "POST" in allowed.headers["Access-Control-Allow-Methods"]
    refused = client.post("/v1/chat/completions", json={}, headers={"Origin": PAGE})
    assert refused.status_code == 401, "pages read errors too"
    assert refused.headers["Access-Control-Allow-Origin"] == answer
    assert refused.headers["Access-Control-Expose-Headers"] == "*"
    assert "Access-Control-Allow-Credentials" not in refused.headers
    assert ("Origin" in client.get("/v1/models").vary) == (setting != "*")


@pytest.mark.parametrize("setting", [PAGE, "*"])
def test_listed_pages_may_use_nothing_else(tmp_path: Path, setting: str) -> None:
    client = make_client(tmp_path, cors_origins=setting)
    assert preflight(client, "/drain", PAGE).status_code == 403
    assert client.post("/drain", headers={"Origin": PAGE}).status_code == 403
    state = client.get("/dashboard/state", headers={"Origin": PAGE})
    assert "Access-Control-Allow-Origin" not in state.headers


def test_origin_is_compared_whole(tmp_path: Path) -> None:
    client = make_client(tmp_path, cors_origins=PAGE)
    for origin in (PAGE + ":8080", PAGE + ".evil.com", "https://chat.example", "null", PAGE[:-1]):
        assert preflight(client, "/v1/chat/completions", origin).status_code == 403


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CORS_ORIGINS", "chat.example"),
        ("CORS_ORIGINS", "http://chat.example/"),
        ("ALLOWED_HOSTS", "http://llm.example"),
        ("ALLOWED_HOSTS", "llm.example:7000"),
    ],
)
def test_faulty_lists_stop_the_start(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(StartupError, match=variable):
        load_settings()


def test_served_name_is_no_redirect(client: FlaskClient) -> None:
    response = client.post("/inference/hearth-tiny", json={"text": "a"})
    assert response.status_code == 503, "loading, as nothing was started"
    assert "Location" not in response.headers
