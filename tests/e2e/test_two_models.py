"""Two models in one process: each says what it says when it is served alone."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import requests

from inference_api.loading.hardware import available_memory_bytes
from inference_api.settings import EMBEDDED_MODEL
from lab.kit.servers import TIMEOUT_S, ServedApi, eventually
from lab.models.random_model import Shape, make_random_model
from tests.forked import served

TINY, RANDOM = EMBEDDED_MODEL.name, "random"
SHAPE = Shape(hidden=64, ffn=128, layers=2, heads=4, kv_heads=2)
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8, "top_k": 50, "seed": 7},
    {"temperature": 1.0, "seed": 8},
]
PROMPTS = ["Tell me a story about a fox.", "Tell me a story about an owl.", "What is 2 + 2?"]
BODIES: list[dict[str, Any]] = [
    {"prompt": prompt, "max_tokens": 24, **sampling} for prompt in PROMPTS for sampling in SAMPLINGS
]


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random") / RANDOM
    make_random_model(SHAPE, folder)
    return folder


@pytest.fixture(scope="module")
def models(random_model: Path) -> str:
    """The setting that serves both."""
    return json.dumps(
        [
            {"model": str(EMBEDDED_MODEL)},
            {"model": str(random_model), "user_rows": 4, "max_seq_len": 512},
        ]
    )


@pytest.fixture(scope="module")
def api(models: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with served(tmp_path_factory.mktemp("two") / "log", MODELS=models) as api:
        yield api
        eventually(api.is_idle)


def completion(api: ServedApi, model: str, body: dict[str, Any]) -> dict[str, Any]:
    response = api.post("/v1/completions", model=model, **body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert answer["model"] == model
    return answer


def texts(api: ServedApi, models: list[str]) -> dict[str, list[str]]:
    """What each model says to every body, all of them at once."""
    asked = [(model, body) for body in BODIES for model in models]
    with ThreadPoolExecutor(len(asked)) as threads:
        answers = list(threads.map(lambda each: completion(api, *each), asked))
    said: dict[str, list[str]] = {model: [] for model in models}
    for answer in answers:
        said[answer["model"]].append(answer["choices"][0]["text"])
    return said


def test_each_says_in_company_what_it_says_alone(
    api: ServedApi, model_api: ServedApi, random_model: Path, tmp_path: Path
) -> None:
    alone = texts(model_api, [TINY])
    with served(tmp_path / "log", MODEL=random_model) as only_random:
        alone |= texts(only_random, [RANDOM])
    assert texts(api, [TINY, RANDOM]) == alone
    assert alone[TINY] != alone[RANDOM]


def test_a_prefix_is_reused_by_its_own_model_only(api: ServedApi) -> None:
    body = {"prompt": "A beginning that nobody has sent before, of some length.", "max_tokens": 1}

    def cached_tokens(model: str) -> int:
        usage = completion(api, model, body)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached_tokens(TINY) == cached_tokens(RANDOM) == 0
    assert cached_tokens(TINY) > 0
    assert cached_tokens(RANDOM) > 0


def test_both_are_listed_and_others_refused(api: ServedApi) -> None:
    listed = requests.get(f"{api.url}/v1/models", timeout=TIMEOUT_S).json()["data"]
    assert [card["id"] for card in listed] == [TINY, RANDOM, "falcon40b"]
    refusal = api.post("/v1/completions", model="other", prompt="x")
    assert refusal.status_code == 404
    assert f"served: {TINY}, {RANDOM}, falcon40b" in refusal.text


def test_the_first_is_the_default_and_has_the_aliases(api: ServedApi) -> None:
    fields = {"text": "What is the capital of Kenya?", "top_k": 1, "max_tokens": 16}
    paths = ("/inference", f"/inference/{TINY}", "/inference/falcon40b")
    bare, named, aliased = (api.post(path, **fields) for path in paths)
    assert bare.text == named.text == aliased.text
    assert "Nairobi" in bare.text
    assert api.post(f"/inference/{RANDOM}", **fields).text != bare.text


SAYS_HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": SAYS_HI, "max_tokens": 1}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 1, "model": None}),
        ("/v1/messages", {"messages": SAYS_HI, "max_tokens": 1}),
        ("/v1/embeddings", {"input": "Hi"}),
    ],
)
def test_the_first_answers_who_names_none(api: ServedApi, path: str, body: dict[str, Any]) -> None:
    response = api.post(path, **body)
    assert response.status_code == 200, response.text
    assert response.json()["model"] == TINY


def test_the_first_counts_for_who_names_none(api: ServedApi) -> None:
    path = "/v1/messages/count_tokens"
    unnamed, first, second = (
        api.post(path, messages=SAYS_HI, **named).json()
        for named in ({}, {"model": TINY}, {"model": RANDOM})
    )
    assert unnamed == first != second


def test_each_has_its_own_tokenizer_and_context(api: ServedApi) -> None:
    answers = [
        api.post("/tokenize", model=model, prompt="hello there").json() for model in (TINY, RANDOM)
    ]
    assert answers[1]["count"] == len("hello there")  # a token for every byte
    assert answers[0]["count"] < answers[1]["count"]
    assert answers[0]["max_model_len"] != answers[1]["max_model_len"]
    assert api.post("/tokenize", prompt="hello there").json() == answers[0]


def test_metrics_state_and_log_say_which_model_served(api: ServedApi) -> None:
    def value(name: str, model: str) -> float:
        lines = requests.get(f"{api.url}/metrics", timeout=TIMEOUT_S).text.splitlines()
        start = f'{name}{{model_name="{model}"}} '
        [number] = [line.removeprefix(start) for line in lines if line.startswith(start)]
        return float(number)

    before = {model: value("inference_generated_tokens_total", model) for model in (TINY, RANDOM)}
    completion(api, RANDOM, {"prompt": "x", "max_tokens": 5, "ignore_eos": True})
    assert value("inference_generated_tokens_total", RANDOM) == before[RANDOM] + 5
    assert value("inference_generated_tokens_total", TINY) == before[TINY]
    assert [value("inference_rows", model) for model in (TINY, RANDOM)] == [32, 4]
    eventually(lambda: "finish_reason=length model=random" in api.log)
    state = requests.get(f"{api.url}/dashboard/state", timeout=TIMEOUT_S).json()
    assert state["server"]["models"] == [TINY, RANDOM]
    assert len(state["rows"]) == 32 + 4


def test_models_that_do_not_fit_together_are_refused_before_any_is_loaded(
    random_model: Path, tmp_path: Path
) -> None:
    """Each is to take eight tenths of what is free, by the length of its context."""
    folder = tmp_path / "long"
    copytree(random_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 10**6}))
    available_bytes = available_memory_bytes()
    assert available_bytes is not None
    head_dim = SHAPE.hidden // SHAPE.heads
    token_bytes = 2 * SHAPE.layers * SHAPE.kv_heads * head_dim * 4
    max_seq_len = int(0.8 * available_bytes / (256 * token_bytes))
    models = json.dumps([{"model": str(folder), "model_name": name} for name in "ab"])
    fields: dict[str, Any] = {"MODELS": models, "USER_ROWS": 256, "MAX_SEQ_LEN": max_seq_len}
    fields["KV_CACHE_MEMORY"] = f"{available_bytes * 8 // 10 // 2**20}MiB"
    with served(tmp_path / "log", start_timeout_s=None, **fields) as api:
        assert api.process.wait(TIMEOUT_S) != 0
    assert "Memory: a 0." in api.log
    assert ", b 0." in api.log
    assert "in MODELS lower kv_cache_memory" in api.log
    assert "loaded" not in api.log
