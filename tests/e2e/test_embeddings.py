"""`/v1/embeddings` of the embedded model, by OpenAI's client and in bytes."""

from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import requests
import torch
from transformers import AutoModel, AutoTokenizer

from inference_api.apis.embeddings import EmbeddingsBody, check_numbers
from inference_api.errors import InvalidRequest
from inference_api.settings.model import EMBEDDED_MODEL
from lab.kit.servers import TIMEOUT_S, ServedApi
from tests.forked import served
from tests.proxy.support import bearer, running_proxy

MODEL = "hearth-tiny"
TEXTS = ["What is the capital of Kenya?", "Tell me a story about a fox.", "Kenya"]
LONG = "The fox goes to the river and back. " * 40  # several chunks beside others


def asked(api: ServedApi, **fields: Any) -> list[list[float]]:
    response = api.post("/v1/embeddings", **{"model": MODEL, "input": TEXTS} | fields)
    assert response.status_code == 200, response.text
    found = response.json()
    assert [each["index"] for each in found["data"]] == [*range(len(found["data"]))]
    return [each["embedding"] for each in found["data"]]


@pytest.fixture(scope="module")
def states() -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """The hidden states of each text's tokens, by transformers."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    model = AutoModel.from_pretrained(EMBEDDED_MODEL, dtype=torch.float32)
    with torch.inference_mode():
        return [
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].double().numpy()
            for text in TEXTS
        ]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_are_those_of_transformers(
    exact_api: ServedApi, states: list[Any], pooling: str
) -> None:
    vectors = asked(exact_api, pooling=pooling)
    for found, of_text in zip(vectors, states, strict=True):
        expected = of_text.mean(axis=0) if pooling == "mean" else of_text[-1]
        np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-4)


def test_a_vector_is_the_same_in_any_company(model_api: ServedApi) -> None:
    alone = asked(model_api, input=LONG)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(asked, model_api, input=[LONG, *TEXTS]) for _ in range(8)]
        assert all(future.result()[0] == alone[0] for future in futures)


def test_openais_client_gets_numbers_though_it_asks_for_base64(model_api: ServedApi) -> None:
    client = openai.OpenAI(base_url=f"{model_api.url}/v1", api_key="none")
    answer = client.embeddings.create(model=MODEL, input=TEXTS)
    assert [each.embedding for each in answer.data] == asked(model_api)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)
    cut = client.embeddings.create(model=MODEL, input="Kenya", dimensions=16).data[0].embedding
    whole = np.array(answer.data[2].embedding[:16])
    np.testing.assert_allclose(cut, whole / np.linalg.norm(whole), rtol=1e-6)


def test_base64_is_float32_in_little_endian(model_api: ServedApi) -> None:
    response = model_api.post(
        "/v1/embeddings", model=MODEL, input="Kenya", encoding_format="base64"
    ).json()
    numbers = np.frombuffer(b64decode(response["data"][0]["embedding"]), "<f4").tolist()
    assert [numbers] == asked(model_api, input="Kenya")


def test_token_ids_are_taken_as_they_are(model_api: ServedApi) -> None:
    ids = model_api.post("/tokenize", model=MODEL, prompt=TEXTS[0]).json()["tokens"]
    assert asked(model_api, input=ids) == asked(model_api, input=[ids]) == asked(model_api)[:1]


@pytest.mark.parametrize(
    ("fields", "param", "part"),
    [
        ({"input": []}, "input", "a text, token ids, or a list"),
        ({"input": ""}, "input", "1"),
        ({"input": ["a"] * 2049}, "input", "2048"),
        ({"input": [10**6]}, "input", "not in this model's vocabulary"),
        ({"input": "a " * 5000}, "input", "2048"),
        ({"dimensions": 0}, "dimensions", "1"),
        ({"dimensions": 4096}, "dimensions", "above the"),
        ({"encoding_format": "int8"}, "encoding_format", "'base64'"),
        ({"pooling": "max"}, "pooling", "'last'"),
        ({"normalize": False}, "normalize", "not served"),
        ({"model": "gpt"}, "model", "gpt"),
    ],
)
def test_refusals_name_field_bound_and_remedy(
    model_api: ServedApi, fields: dict[str, Any], param: str, part: str
) -> None:
    body = {"model": MODEL, "input": "a"} | fields
    response = model_api.post("/v1/embeddings", **body)
    error = response.json()["error"]
    assert response.status_code in (400, 404)
    assert error["param"] == param
    assert part in error["message"]


def test_a_mock_has_none(mock_api: ServedApi) -> None:
    response = mock_api.post("/v1/embeddings", model=mock_api.state()["model"], input="a")
    assert response.status_code == 400
    assert "is a mock" in response.json()["error"]["message"]


def test_a_call_of_many_leaves_room_for_others(tmp_path: Path) -> None:
    """With places for ten, it would take them all, and others would get 503 until it ends."""
    texts = [f"Kenya {number}" for number in range(512)]
    with (
        served(tmp_path / "log", USER_ROWS=2, MAX_INPUT_QSIZE=8) as api,
        ThreadPoolExecutor(1) as threads,
    ):
        alone = asked(api, input=[texts[0], texts[-1]])
        many = threads.submit(asked, api, input=texts)
        statuses = set[int]()
        while not many.done():
            answer = api.post("/v1/completions", prompt="Hello", max_tokens=1)
            statuses.add(answer.status_code)
        assert statuses == {200}
        vectors = many.result()
    assert len(vectors) == 512
    assert [vectors[0], vectors[-1]] == alone


def test_teams_are_charged_for_every_text(model_api: ServedApi, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("defaults: {tokens_per_minute: 1000}")
    texts = {"input": ["Kenya"] * 2000, "encoding_format": "base64"}
    with running_proxy(tmp_path, model_api.url, POLICY_FILE=str(tmp_path / "policy.yaml")) as proxy:
        ask = partial(
            requests.post, f"{proxy.url}/v1/embeddings", headers=bearer(), timeout=TIMEOUT_S
        )
        answer = ask(json=texts)
        assert len(answer.json()["data"]) == 2000
        line = proxy.audit_with(request_id=answer.headers["X-Request-Id"])
        used = answer.json()["usage"]["prompt_tokens"]
        assert (line["prompt_tokens"], line["tokens_source"]) == (used, "usage")
        assert used >= 2000
        assert ask(json={"input": "Kenya"}).status_code == 429


@pytest.mark.parametrize(
    ("fields", "num_inputs", "is_refused"),
    [
        ({}, 512, False),
        ({}, 513, True),
        ({"dimensions": 2048}, 1025, True),
        ({"dimensions": 1024}, 2048, False),
        ({"encoding_format": "base64"}, 2048, False),
    ],
)
def test_figures_of_an_answer_are_bounded(
    fields: dict[str, Any], num_inputs: int, is_refused: bool
) -> None:
    """Of a model whose states have 4096 numbers."""
    body = EmbeddingsBody(input="a", **fields)
    refused = pytest.raises(InvalidRequest, match="above 2097152; give fewer texts, fewer")
    with refused if is_refused else nullcontext():
        check_numbers(body, num_inputs * (body.dimensions or 4096))
