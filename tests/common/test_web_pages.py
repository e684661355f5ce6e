"""Names of hosts that are ours, and services that run alone: no page of others may use them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from common.web_pages import is_own_host
from optimizer.app import create_app as create_optimizer
from optimizer.settings import Settings as OptimizerSettings
from tests.weights.support import new_client as new_weights

NewClient = Callable[..., FlaskClient]
REBOUND = {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}


def new_optimizer(folder: Path, **settings: Any) -> FlaskClient:
    kept = OptimizerSettings(stateful=True, store_path=folder / "optimizer.db", **settings)
    return create_optimizer(kept).test_client()


@pytest.fixture(params=["optimizer", "weights"])
def new_client(request: pytest.FixtureRequest, tmp_path: Path) -> NewClient:
    if request.param == "weights":
        return new_weights
    return lambda **settings: new_optimizer(tmp_path, **settings)


@pytest.fixture
def client(new_client: NewClient) -> FlaskClient:
    return new_client()


@pytest.mark.parametrize(
    "host",
    [
        "", "127.0.0.1:7000", "10.1.2.3", "[::1]:7000", "localhost", "LOCALHOST:7000", "localhost.",
        "api:7000", "box.local:7000", "api.prod.svc", "api.prod.svc.cluster.local", "x.internal",
        "me.localhost:80",
    ],
)  # fmt: skip
def test_names_that_nobody_outside_can_have_are_ours(host: str) -> None:
    assert is_own_host(host, frozenset())


@given(st.from_regex(r"[a-z_]{1,8}(\.[a-z0-9_]{1,8}){1,3}\.(com|example|cc)(:[0-9]{1,5})?\.?"))
def test_no_public_name_is_ours(host: str) -> None:
    assert not is_own_host(host, frozenset())


def test_listed_names_are_ours() -> None:
    names = {"llm.example.org", "box.example.org"}
    assert is_own_host("LLM.example.org:7000", names)
    assert is_own_host("box.example.org", names)
    assert not is_own_host("other.example.org", names)
    assert is_own_host("other.example.org", {"*"})


@pytest.mark.parametrize("path", ["/health", "/docs/", "/openapi.json", "/setServers", "/nothing"])
def test_name_that_a_page_has_had_point_here_reads_nothing(client: FlaskClient, path: str) -> None:
    refused = client.get(path, headers=REBOUND)
    assert refused.status_code == 403
    assert refused.get_json()["error"]["code"] == "host_not_allowed"
    assert "ALLOWED_HOSTS" in refused.get_json()["message"]


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_pages_of_others_send_nothing(client: FlaskClient, headers: dict[str, str]) -> None:
    for path in ("/setServers", "/weights_update", "/nothing"):
        refused = client.post(path, json={}, headers=headers)
        assert refused.get_json()["error"]["code"] == "origin_not_allowed"


def test_body_of_a_client_that_does_not_say_json_is_read(client: FlaskClient) -> None:
    for headers in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
        answer = client.post("/weights_log", data=b"{}", headers=headers)
        assert answer.status_code in (404, 422)


def test_get_that_changes_something_is_not_for_browsers(tmp_path: Path) -> None:
    client = new_optimizer(tmp_path)
    browser = {"User-Agent": "Mozilla/5.0"}
    assert client.get("/addModel/llama", headers=browser).status_code == 403
    assert client.get("/addModel/llama").status_code == 200


def test_own_page_and_listed_names_may(new_client: NewClient) -> None:
    client = new_client(allowed_hosts="plan.example.org")
    for host in ("localhost:8080", "plan.example.org"):
        headers = {"Host": host, "Origin": f"http://{host}"}
        assert client.get("/health", headers=headers).status_code == 200
        assert client.post("/nothing", json={}, headers=headers).status_code == 404


def test_name_that_is_none_stops_the_start(new_client: NewClient) -> None:
    with pytest.raises(ValueError, match="no name of a host"):
        new_client(allowed_hosts="http://plan.example.org")
