"""Prompts that do not fit, in the words by which each API's clients know it, also by the proxy."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from lab.kit.servers import TIMEOUT_S, ServedApi
from tests.proxy.support import bearer, running_proxy

CONTEXT = 2048  # of the embedded model
LONG = "x " * 4000  # may fit by its bytes, and does not by its tokens
HUGE = "x" * 100_000  # cannot fit, and is not encoded

PROMPT_FIELDS = {
    "/v1/completions": "prompt",
    "/v1/chat/completions": "messages",
    "/v1/responses": "input",
    "/v1/embeddings": "input",
    "/v1/messages": "messages",
}
OF_OPENAI = [path for path in PROMPT_FIELDS if path != "/v1/messages"]


@pytest.fixture(scope="module", params=["api", "proxy"])
def url(
    request: pytest.FixtureRequest, model_api: ServedApi, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == "api":
        yield model_api.url
        return
    with running_proxy(tmp_path_factory.mktemp("proxy"), model_api.url) as proxy:
        yield proxy.url


def refusal(url: str, path: str, text: str, **fields: Any) -> dict[str, Any]:
    field = PROMPT_FIELDS[path.removesuffix("/count_tokens")]
    fields[field] = [{"role": "user", "content": text}] if field == "messages" else text
    answer = requests.post(url + path, json=fields, headers=bearer(), timeout=TIMEOUT_S)
    assert answer.status_code == 400, answer.text
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.parametrize("text", [LONG, HUGE])
@pytest.mark.parametrize("path", OF_OPENAI)
def test_in_openais_words(url: str, path: str, text: str) -> None:
    error = refusal(url, path, text)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == PROMPT_FIELDS[path]
    assert f"maximum context length is {CONTEXT} tokens" in error["message"]


@pytest.mark.parametrize("text", [LONG, HUGE])
@pytest.mark.parametrize("stream", [False, True])
def test_in_anthropics_words(url: str, stream: bool, text: str) -> None:
    body = refusal(url, "/v1/messages", text, max_tokens=10, stream=stream)
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    told = re.match(r"prompt is too long: (\d+) tokens > (\d+) maximum", body["error"]["message"])
    assert told is not None
    prompt_tokens, max_prompt_tokens = map(int, told.groups())
    assert prompt_tokens > max_prompt_tokens == CONTEXT - 1


def test_tokens_are_counted_beyond_the_context(model_api: ServedApi) -> None:
    messages = [{"role": "user", "content": LONG}]
    counted = model_api.post("/v1/messages/count_tokens", messages=messages)
    assert counted.json()["input_tokens"] > CONTEXT
    refused = refusal(model_api.url, "/v1/messages/count_tokens", HUGE)
    assert refused["error"]["message"].startswith("prompt is too long: ")


def test_maximum_is_what_a_prompt_may_have(model_api: ServedApi) -> None:
    """Of one token more the refusal gives the exact number."""
    fits = {"prompt": [100] * (CONTEXT - 1), "max_tokens": 1}
    assert model_api.post("/v1/completions", **fits).status_code == 200
    refused = model_api.post("/v1/completions", prompt=[100] * CONTEXT, max_tokens=1)
    assert f"the prompt has {CONTEXT};" in refused.json()["message"]
