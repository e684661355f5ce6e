"""Defaults that a model brings, on every route that leaves something unset."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lab.kit.servers import ServedApi
from lab.models.random_model import SHAPES, make_random_model
from tests.forked import served

MODEL = "random"
TURNS = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    folder = tmp_path_factory.mktemp("defaults")
    make_random_model(SHAPES["tiny"], folder / MODEL)
    (folder / MODEL / "generation_config.json").write_text('{"top_k": 1, "top_p": 7}')
    with served(folder / "log", MODEL=folder / MODEL) as api:
        yield api


def text(api: ServedApi, path: str, **fields: Any) -> str:
    response = api.post(path, **{"model": MODEL, "max_tokens": 12, **fields})
    assert response.status_code == 200, response.text
    answer = response.json()
    if "content" in answer:
        return json.dumps(answer["content"])
    if "output" in answer:
        return json.dumps([item.get("content") for item in answer["output"]])
    return json.dumps(answer["choices"][0].get("message") or answer["choices"][0]["text"])


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/chat/completions", {"messages": TURNS}),
        ("/v1/messages", {"messages": TURNS}),
        ("/v1/responses", {"input": "hello", "max_tokens": None, "max_output_tokens": 12}),
    ],
)
def test_model_says_what_the_request_leaves_out(
    api: ServedApi, path: str, prompt: dict[str, Any]
) -> None:
    greedy = text(api, path, **prompt, temperature=0)
    assert {text(api, path, **prompt) for _ in range(3)} == {greedy}
    sampled = {text(api, path, **prompt, top_k=100, seed=seed) for seed in range(3)}
    assert len(sampled) == 3  # what the request says wins


def test_models_list_shows_the_defaults_and_the_native_routes_keep_theirs(api: ServedApi) -> None:
    (card, *_) = api.get("/v1/models").json()["data"]
    assert card["default_sampling_params"] == {"top_k": 1}
    native = {
        api.post(f"/inference/{MODEL}", text="hello", max_tokens=12, seed=seed).text
        for seed in range(3)
    }
    assert len(native) > 1
