"""A served model over three ranks, started as anybody starts it, of which one is killed."""

import json
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import psutil
import pytest
import requests

from lab.kit.servers import TIMEOUT_S, ServedApi, eventually
from tests.e2e.test_make_serve import Stack, started
from tests.followed_pages import DOCS, Reader, served_by

PAGE = DOCS / "wishes" / "unequal-machines.md"
NUM_STREAMS = 8
QUESTION = {"model": "hearth-tiny", "prompt": "Once upon a time", "temperature": 0}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("pipeline")
    own = Reader(folder, {}).environment()
    with started(folder / "log", served_by(PAGE), folder, SPLIT_TIMEOUT=20, **own) as stack:
        yield stack
        interrupt_ends_all_ranks(stack)  # last of all, whatever the order of the tests


def interrupt_ends_all_ranks(stack: Stack) -> None:
    children = psutil.Process(stack.process.pid).children(recursive=True)
    stack.process.send_signal(signal.SIGINT)
    assert stack.process.wait(TIMEOUT_S) == 0
    assert psutil.wait_procs(children, TIMEOUT_S)[1] == []


def answer(url: str) -> str:
    body = {**QUESTION, "max_tokens": 24}
    response = requests.post(f"{url}/v1/completions", json=body, timeout=TIMEOUT_S)
    response.raise_for_status()
    text: str = response.json()["choices"][0]["text"]
    return text


def ranks(stack: Stack) -> list[psutil.Process]:
    """All but rank 0, which is the API."""
    found = []
    for process in psutil.Process(stack.process.pid).children(recursive=True):
        words = process.cmdline()
        if words[-2:] == ["-m", "inference_api.pipeline"]:
            found.append(process)
    return found


def status(stack: Stack) -> int | None:
    try:
        return requests.get(f"{stack.api}/ready", timeout=TIMEOUT_S).status_code
    except requests.ConnectionError:
        return None


def test_three_ranks_answer_as_one_process(stack: Stack, model_api: ServedApi) -> None:
    assert len(ranks(stack)) == 2
    assert answer(stack.api) == answer(model_api.url)


def test_the_page_is_followed_to_the_best_split(stack: Stack, model_api: ServedApi) -> None:
    reader = Reader(stack.log_path.parent, {"http://127.0.0.1:7000": stack.api})
    answered, proposed, told, session, partition = reader.follow(PAGE)
    assert json.loads(answered)["choices"][0]["text"] == answer(model_api.url)
    assert sum(json.loads(proposed)["weights"]) == pytest.approx(1)
    assert json.loads(told)["best_perf_metric"] == 41.7
    assert "converged" in json.loads(session)["convergence"]
    assert json.loads(partition)["engines"]["vllm"] == {"VLLM_PP_LAYER_PARTITION": "16,10,6"}


def test_only_an_operator_moves_layers_and_no_answer_changes(stack: Stack) -> None:
    expected = answer(stack.api)
    for layers in ([1, 1, 3], [2, 1, 2]):
        response = requests.post(
            f"{stack.api}/pipeline/split", json={"layers": layers}, timeout=TIMEOUT_S
        )
        assert response.json() == {"layers": layers}
        assert answer(stack.api) == expected
    for route in ("split", "measure"):
        response = requests.post(
            f"{stack.proxy}/pipeline/{route}", headers=stack.authorization(), timeout=TIMEOUT_S
        )
        assert (response.status_code, response.json()["error"]["code"]) == (403, "role_needed")


def test_split_auto_searches_beside_the_server(tmp_path: Path) -> None:
    log_path, own = tmp_path / "log", Reader(tmp_path, {}).environment()
    command = ("hearth", "serve")
    with started(log_path, command, tmp_path, SPLIT="auto", SPLIT_RANKS=2, **own) as stack:
        expected = answer(stack.api)
        tried = re.compile(r'"layers": \[(\d), \d\].*"tokens_per_s"')
        eventually(lambda: len(set(tried.findall(log_path.read_text()))) > 1)
        assert answer(stack.api) == expected
        [session] = requests.get(f"{stack.api}/weights/sessions", timeout=TIMEOUT_S).json()[
            "sessions"
        ]
        assert session["session_id"].startswith("pipeline-hearth-tiny")


def test_killed_rank_fails_its_streams_and_all_start_again(stack: Stack) -> None:
    expected, victims = answer(stack.api), ranks(stack)
    all_run = Barrier(NUM_STREAMS + 1)

    def stream_to_its_end(number: int) -> None:
        body = {**QUESTION, "max_tokens": 2000, "stream": True, "ignore_eos": True, "seed": number}
        with requests.post(
            f"{stack.api}/v1/completions", json=body, stream=True, timeout=TIMEOUT_S
        ) as response:
            chunks = response.iter_lines()
            next(chunks)
            all_run.wait(TIMEOUT_S)
            for _ in chunks:
                pass

    with ThreadPoolExecutor(NUM_STREAMS) as clients:
        streams = [clients.submit(stream_to_its_end, number) for number in range(NUM_STREAMS)]
        all_run.wait(TIMEOUT_S)
        victims[-1].kill()
        failures = [stream.exception(TIMEOUT_S) for stream in streams]
    assert all(isinstance(each, requests.exceptions.ChunkedEncodingError) for each in failures)
    eventually(lambda: status(stack) != 200)
    eventually(lambda: status(stack) == 200)
    assert answer(stack.api) == expected
    assert not set(ranks(stack)) & set(victims)
