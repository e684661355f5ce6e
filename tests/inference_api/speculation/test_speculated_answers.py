"""Speculation changes no answer: the embedded model with and without it, by the API's routes."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
import torch
from flask import Flask

from inference_api.inference_api_server import create_server, server_of
from inference_api.settings import Settings
from lab.kit.servers import eventually
from tests.inference_api.in_process import started

MODEL = "hearth-tiny"
CONTEXT_TOKENS = 128
FORMS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "int8": {"quantization": "int8"},
}
if torch.cuda.is_available():
    FORMS["cuda"] = {"device": "cuda"}

COPY = "Echo this text: Jonas went to Nashville with a clever child."
STORY = "Tell me a story about a fox and a baker."
LETTER = "Draft a letter about Edinburgh from Rosa to Maria."
SENTENCE = "The quick brown fox sees the lazy dog. "
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
GREEDY = {"temperature": 0, "max_tokens": 40}
SEEDED = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 5, "max_tokens": 40}
LOOP = {"prompt": SENTENCE * 3, "temperature": 0, "ignore_eos": True, "max_tokens": 48}

Body = Mapping[str, Any]

CASES: dict[str, Body] = {
    "copy": {"prompt": COPY, **GREEDY},
    "story": {"prompt": STORY, **GREEDY},
    "letter": {"prompt": LETTER, **GREEDY},
    "loop": LOOP,
    "seeded copy": {"prompt": COPY, **SEEDED},
    "seeded story": {"prompt": STORY, **SEEDED},
    "seeded loop": {**LOOP, **SEEDED, "temperature": 0.3},
    "several choices": {"prompt": COPY, **SEEDED, "n": 3},
    "penalties": {
        "prompt": SENTENCE * 3,
        **GREEDY,
        "ignore_eos": True,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
    },
    "bias": {**LOOP, "logit_bias": {"300": 4, "17": -100}},
    "log probabilities": {"prompt": COPY, **GREEDY, "logprobs": 3},
    "echo": {"prompt": SENTENCE * 2, **GREEDY, "echo": True, "logprobs": 2},
    "stop string": {**LOOP, "stop": ["lazy d"]},
    "stop string, scored": {"prompt": COPY, **GREEDY, "stop": "ville", "logprobs": 1},
    "to the end of the context": {
        "messages": [{"role": "user", "content": SENTENCE * 3}],
        "temperature": 0,
        "ignore_eos": True,
    },
    "regular expression": {
        "prompt": COPY,
        **GREEDY,
        "structured_outputs": {"regex": "(Jonas went to Nashville[,.] ){1,4}"},
    },
    "json": {
        "prompt": "Produce JSON from this sentence: Greta is 47 years old.",
        **GREEDY,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": SCHEMA},
        },
    },
    **{f"{n} tokens": {**LOOP, "max_tokens": n} for n in range(1, 6)},
}
Ask = Callable[[str], Flask]
Said = tuple[Any, int]


@pytest.fixture(scope="module", params=FORMS)
def app(request: pytest.FixtureRequest) -> Iterator[Ask]:
    """The application by `SPECULATION`, of one form of the weights."""
    with ExitStack() as stack:

        @cache
        def make(mode: str) -> Flask:
            settings = {
                **FORMS[request.param],
                "speculation": mode,
                "user_rows": 8,
                "max_seq_len": CONTEXT_TOKENS,
            }
            app = create_server(Settings.model_validate(settings))
            return stack.enter_context(started(app)).application

        yield make


def ask(app: Flask, body: Body) -> dict[str, Any]:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    response = app.test_client().post(path, json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.get_json()
    return answer


def said(answer: Mapping[str, Any]) -> Said:
    """What of an answer may not change."""
    return answer["choices"], answer["usage"]["completion_tokens"]


def totals(app: Flask) -> Any:
    return server_of(app).backend.snapshot.totals


@pytest.fixture(scope="module")
def plain(app: Ask) -> Callable[[str], Said]:
    """What the model says to each case alone and without speculation."""
    return cache(lambda case: said(ask(app("off"), CASES[case])))


@pytest.mark.parametrize("case", CASES)
def test_answer_is_that_of_single_steps(
    app: Ask, plain: Callable[[str], Said], case: str, request: pytest.FixtureRequest
) -> None:
    """Those of each form by one mode, and among others by another."""
    mode = "medusa" if request.node.callspec.params["app"] == "int8" else "ngram"
    assert said(ask(app(mode), CASES[case])) == plain(case)


def test_answers_among_others_that_come_and_go_are_those_of_each_alone(
    app: Ask, plain: Callable[[str], Said], request: pytest.FixtureRequest
) -> None:
    """Nearly thrice as many as there are rows; some of them hang up."""
    mode = "medusa" if request.node.callspec.params["app"] == "float32" else "auto"
    served = app(mode)  # made here, and not by every thread at once

    def hang_up(_: int) -> None:
        body = {"model": MODEL, **LOOP, "stream": True}
        client = served.test_client()
        with client.post("/v1/completions", json=body, buffered=False) as response:
            next(response.iter_encoded())

    def said_together(case: str) -> Said:
        return said(ask(served, CASES[case]))

    with ThreadPoolExecutor(24) as pool:
        hung_up = pool.map(hang_up, range(6))
        together = dict(zip(CASES, pool.map(said_together, CASES), strict=True))
        list(hung_up)
    assert together == {case: plain(case) for case in CASES}
    eventually(lambda: server_of(app(mode)).backend.snapshot.busy_rows == 0)


def test_copies_take_fewer_steps(app: Ask) -> None:
    before = totals(app("ngram"))
    answer = ask(app("ngram"), CASES["copy"])
    eventually(lambda: server_of(app("ngram")).backend.snapshot.busy_rows == 0)
    after = totals(app("ngram"))
    accepted = after.accepted_tokens - before.accepted_tokens
    drafted = after.drafted_tokens - before.drafted_tokens
    assert accepted > 4
    assert answer["usage"]["acceptance_rate"] == pytest.approx(accepted / drafted)
    assert answer["usage"]["tokens_per_step"] > 1.3


def test_nothing_is_drafted_or_said_about_it_without_speculation(app: Ask) -> None:
    usage = ask(app("off"), LOOP)["usage"]
    assert usage["acceptance_rate"] is None
    assert "tokens_per_step" not in usage
    assert totals(app("off")).drafted_tokens == 0


def test_draft_before_the_end_of_the_context_is_cut(app: Ask) -> None:
    answer = ask(app("ngram"), CASES["to the end of the context"])
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == CONTEXT_TOKENS
