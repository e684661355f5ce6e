"""`hearth agent` beside real servers: an API, a proxy, and none at all."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from inference_api.agents import agents
from lab.kit.servers import ServedApi
from scripts.agent import main
from tests.ports import free_port
from tests.proxy.support import make_token, running_proxy

MODEL, CONTEXT_TOKENS = "hearth-tiny", 2048


@pytest.fixture(scope="module")
def proxy_url(model_api: ServedApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_proxy(tmp_path_factory.mktemp("proxy"), model_api.url) as proxy:
        yield proxy.url


def run(*arguments: str, token: str | None = None) -> Result:
    return CliRunner(env={"HEARTH_TOKEN": token}).invoke(main, arguments)


@pytest.mark.parametrize("name", agents())
def test_lines_are_filled_in_for_the_server(model_api: ServedApi, name: str) -> None:
    result = run(name, "--url", model_api.url + "/v1/")
    assert result.exit_code == 0
    assert "export HEARTH_TOKEN=none\n" in result.stdout
    assert f"{model_api.url}" in result.stdout
    assert MODEL in result.stdout
    assert "```" not in result.stdout
    is_short = agents()[name].first_prompt_tokens > CONTEXT_TOKENS
    assert ("raise MAX_SEQ_LEN" in result.stderr) == is_short


def test_proxy_is_asked_with_the_token_which_is_not_printed(proxy_url: str) -> None:
    token = make_token()
    result = run("codex", "--url", proxy_url, token=token)
    assert result.exit_code == 0
    assert f'base_url = "{proxy_url}/v1"' in result.stdout
    assert f"model_context_window = {CONTEXT_TOKENS}" in result.stdout
    assert "export HEARTH_TOKEN" not in result.stdout
    assert token not in result.output


def test_another_model_may_be_named(model_api: ServedApi) -> None:
    result = run("claude", "--url", model_api.url, "--model", "falcon40b")
    assert "ANTHROPIC_MODEL=falcon40b\n" in result.stdout
    result = run("claude", "--url", model_api.url, "--model", "other")
    assert result.exit_code == 1
    assert "does not serve 'other'; it serves ['hearth-tiny', 'falcon40b']" in result.stderr


def test_without_a_server_or_a_token_it_says_what_to_do(proxy_url: str) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    for url, reason in ((nobody, "refused"), (proxy_url, "answers 401")):
        result = run("claude", "--url", url)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert f"{url}/v1/models: " in result.stderr
        assert reason in result.stderr
        assert "Start one with `hearth serve`" in result.stderr
        assert "HEARTH_TOKEN" in result.stderr


@pytest.mark.parametrize("card", [r'{"id": "\ud800", "max_model_len": 9}', '{"id": 1}', "[]", "{"])
def test_what_is_no_list_of_models_is_told(monkeypatch: pytest.MonkeyPatch, card: str) -> None:
    monkeypatch.setattr("scripts.agent.fetch", lambda *_: f'{{"data": [{card}]}}')
    result = run("claude", "--url", "http://localhost:1")
    assert "No server lists its models" in result.stderr


def test_without_a_name_all_are_listed() -> None:
    result = run()
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == [*agents()]
    assert run("nobody").exit_code == 2
