"""What Anthropic's clients ask besides messages: models, signs of life, a place to tell tales."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic
import pytest
import requests

from lab.kit.servers import TIMEOUT_S, ServedApi
from tests.proxy.support import ProxyProcess, bearer, make_token, running_proxy

MODEL, ALIAS = "hearth-tiny", "falcon40b"
VERSION = {"anthropic-version": "2023-06-01"}
POLICY = "teams: {choosy: {models: [falcon40b]}}"


@pytest.fixture(scope="module")
def proxy(model_api: ServedApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    directory: Path = tmp_path_factory.mktemp("proxy")
    (directory / "policy.yaml").write_text(POLICY)
    with running_proxy(
        directory, model_api.url, POLICY_FILE=str(directory / "policy.yaml")
    ) as process:
        yield process


def got(url: str, path: str, **claims: Any) -> dict[str, Any]:
    answer = requests.get(url + path, headers=VERSION | bearer(**claims), timeout=TIMEOUT_S)
    body: dict[str, Any] = answer.json()
    return body | {"status": answer.status_code}


def test_models_are_listed_in_anthropics_form(model_api: ServedApi, proxy: ProxyProcess) -> None:
    page = got(model_api.url, "/v1/models")
    assert got(proxy.url, "/v1/models") == page
    assert [each["id"] for each in page["data"]] == [MODEL, ALIAS]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (MODEL, ALIAS, False)
    model = page["data"][0]
    assert (model["type"], model["display_name"]) == ("model", MODEL)
    assert model["max_input_tokens"] == 2048
    assert model["created_at"].endswith("Z")
    assert datetime.fromisoformat(model["created_at"]) <= datetime.now(UTC)
    assert got(model_api.url, f"/v1/models/{MODEL}") == model | {"status": 200}


def test_without_the_header_the_form_is_openais(model_api: ServedApi) -> None:
    answer = requests.get(f"{model_api.url}/v1/models", timeout=TIMEOUT_S)
    assert answer.json()["object"] == "list"
    assert "anthropic-version" in answer.headers["Vary"].lower()


def test_team_sees_the_models_that_it_may_use(proxy: ProxyProcess) -> None:
    page = got(proxy.url, "/v1/models", team_id="choosy")
    assert [each["id"] for each in page["data"]] == [ALIAS]
    assert page["first_id"] == page["last_id"] == ALIAS
    status_by_name = {
        name: got(proxy.url, f"/v1/models/{name}", team_id="choosy")["status"]
        for name in (ALIAS, MODEL)
    }
    assert status_by_name == {ALIAS: 200, MODEL: 403}


def test_anthropics_client_reads_them(proxy: ProxyProcess) -> None:
    with anthropic.Anthropic(base_url=proxy.url, api_key=make_token()) as client:
        assert [each.id for each in client.models.list()] == [MODEL, ALIAS]
        assert client.models.retrieve(MODEL).display_name == MODEL
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.models.retrieve("nobody")
    body: Any = caught.value.body
    assert body["error"]["type"] == "not_found_error"


QUIET = [("HEAD", "/", 200), ("HEAD", "/v1/models", 200), ("POST", "/api/event_logging/batch", 404)]


@pytest.mark.parametrize(("method", "path", "status"), QUIET)
def test_signs_of_life_and_tales_are_no_failures(
    model_api: ServedApi, proxy: ProxyProcess, method: str, path: str, status: int
) -> None:
    def failures() -> list[str]:
        lines = requests.get(f"{model_api.url}/metrics", timeout=TIMEOUT_S).text.splitlines()
        return [line for line in lines if line.startswith("inference_errors_total")]

    before, begin = failures(), len(model_api.log)
    for url in (model_api.url, proxy.url):
        tales: dict[str, Any] = {"json": {"events": [{}] * 9}} if method == "POST" else {}
        headers = bearer(team_id="choosy", token_id=f"{method}{path}", role="team")
        answer = requests.request(method, url + path, headers=headers, timeout=TIMEOUT_S, **tales)
        assert answer.status_code == status
    assert failures() == before
    assert f"refused {path!r}" not in model_api.log[begin:]
    line = proxy.audit_with(token_id=f"{method}{path}")
    assert (line["status"], line["outcome"]) == (status, "complete")


def test_tales_reach_no_server(model_api: ServedApi, proxy: ProxyProcess) -> None:
    url = f"{proxy.url}/api/event_logging/v2/batch"
    requests.post(url, json={}, headers=bearer(token_id="tales"), timeout=TIMEOUT_S)
    assert "upstream" not in proxy.audit_with(token_id="tales")
    assert requests.post(url, json={}, timeout=TIMEOUT_S).status_code == 401
