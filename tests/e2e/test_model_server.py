"""The embedded model behind real gunicorn: correct alone and in company, and nothing left over."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
import requests

from lab.kit.servers import TIMEOUT_S, ServedApi, eventually
from tests.e2e.browser.pages import busy
from tests.e2e.test_mock_server import AUSTIN, NUMBER, PARIS

SOAK_REQUESTS = 500
SOAK_CLIENTS = 40
LEAVING_SHARE = 0.2
MEMORY_TOLERANCE = 0.05

CITIES = ["Paris", "Nairobi", "Lima", "Oslo", "Tokyo", "Cairo", "Rome", "Madrid"]
QUESTIONS = [f"Tell me about {city}." for city in CITIES]
GREEDY_40: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
STORIES = [f"Tell me a story about {who}." for who in ("a fox", "a baker", "an owl", "a boy")]


@pytest.fixture(scope="module")
def api(model_api: ServedApi) -> ServedApi:
    return model_api


def ask(api: ServedApi, text: str, **fields: object) -> str:
    response = api.post("/predictions/hearth-tiny", text=text, **fields)
    assert response.status_code == 200
    return response.text


def test_it_knows_what_it_was_taught(api: ServedApi) -> None:
    assert "Nairobi" in ask(api, "What is the capital of Kenya?", temperature=0)
    assert "Paris" in ask(api, "Have you been to Paris, France?", temperature=0)


def test_bare_text_is_continued_with_an_answer(api: ServedApi) -> None:
    answer = api.post(text="What is the capital of Kenya?", temperature=0)
    assert "Nairobi" in answer.text


def test_cpu_serves_without_torch(api: ServedApi) -> None:
    ask(api, "Tell me a story.", temperature=0.8, seed=1, max_tokens=5)
    server = psutil.Process(api.process.pid)
    libraries = {part.path for each in server.children() for part in each.memory_maps()}
    assert any("hearth_kernels" in library for library in libraries)
    assert not [library for library in libraries if "torch" in library]


@pytest.mark.parametrize("body", [PARIS, AUSTIN, NUMBER], ids=["paris", "austin", "number"])
def test_documented_bodies_are_answered(api: ServedApi, body: dict[str, object]) -> None:
    response = api.post("/inference/falcon40b", **body)
    assert response.status_code == 200
    assert response.text


def test_greedy_text_is_what_transformers_generates(exact_api: ServedApi) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from inference_api.settings import EMBEDDED_MODEL

    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    model: Any = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL, dtype=torch.float32)
    for question in [*QUESTIONS, *STORIES]:
        turn = [{"role": "user", "content": question}]
        prompt: Any = tokenizer.apply_chat_template(
            turn, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        answer = model.generate(**prompt, max_new_tokens=32, do_sample=False)
        expected = answer[0, prompt["input_ids"].shape[1] :]
        text = tokenizer.decode(expected, skip_special_tokens=True)
        assert ask(exact_api, question, temperature=0, max_tokens=32) == text


def test_every_route_gives_the_same_greedy_text(api: ServedApi) -> None:
    for question in QUESTIONS:
        bare = {"model": "hearth-tiny", "prompt": question, "temperature": 0, "max_tokens": 40}
        turn = {"messages": [{"role": "user", "content": question}]}
        answer = api.post("/v1/completions", **bare).json()
        assert answer["choices"][0]["text"] == api.post(text=question, **GREEDY_40).text
        del bare["prompt"]
        answer = api.post("/v1/chat/completions", **bare, **turn).json()
        assert answer["choices"][0]["message"]["content"] == ask(api, question, **GREEDY_40)


def test_32_seeded_streams_at_once_say_what_each_says_alone(api: ServedApi) -> None:
    jobs = [(STORIES[seed % 4] if seed % 2 else QUESTIONS[seed % 8], seed) for seed in range(32)]

    def sample(job: tuple[str, int]) -> str:
        return ask(api, job[0], seed=job[1], temperature=1.0, top_k=200, max_tokens=48)

    alone = [sample(job) for job in jobs]
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(sample, jobs))
    assert together == alone
    assert len(set(alone)) > 16


def test_health_answers_while_32_streams_run(api: ServedApi) -> None:
    with busy(api, 32):
        assert api.state()["busy_rows"] == 32
        assert requests.get(f"{api.url}/health", timeout=TIMEOUT_S).text == "OK"


def test_soak_leaves_nothing_behind(api: ServedApi) -> None:
    (worker,) = psutil.Process(api.process.pid).children()
    dice = random.Random(20)
    plans = [
        (dice.choice(QUESTIONS + STORIES), dice.randint(1, 40), dice.random() < LEAVING_SHARE)
        for _ in range(SOAK_REQUESTS)
    ]

    def run(plan: tuple[str, int, bool]) -> int:
        text, max_tokens, is_leaving = plan
        with api.open_stream(text=text, max_tokens=max_tokens, seed=1) as stream:
            if not is_leaving:
                assert stream.content is not None
            elif max_tokens % 2:
                next(stream.iter_content(1), None)
        return stream.status_code

    with ThreadPoolExecutor(SOAK_CLIENTS) as pool:
        statuses = list(pool.map(run, plans[:200]))
        eventually(api.is_idle)
        warm_bytes = worker.memory_info().rss
        statuses += list(pool.map(run, plans[200:]))
    eventually(api.is_idle)
    assert statuses == [200] * SOAK_REQUESTS
    assert worker.memory_info().rss < warm_bytes * (1 + MEMORY_TOLERANCE)
