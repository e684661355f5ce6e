"""Prompts that cannot fit, and the largest that may, beside a stream that runs."""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import psutil
import pytest
import requests

from lab.kit.servers import TIMEOUT_S, ServedApi
from tests.proxy.support import bearer, running_proxy

AT_ONCE = 9
HUGE_BYTES = 4_000_000
CONTEXT_BYTES = 2048 * len("<|assistant|>")  # of the embedded model: context x longest token
# The server's processor time: a fraction; tens when prompts were encoded unbounded.
MAX_GAP_S = 10.0
MAX_GROWTH_BYTES = 200 * 1024**2
STREAM_TOKENS = 1900
POLL_S = 0.02


@pytest.fixture(scope="module")
def proxy_url(model_api: ServedApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_proxy(tmp_path_factory.mktemp("proxy"), model_api.url) as proxy:
        yield proxy.url


class Stream:
    """A completion that runs meanwhile: at what cost its pieces came, and how it ended."""

    def __init__(self, url: str, cost: "Cost") -> None:
        self._url, self._cost = url, cost
        self.started = Event()
        self.is_enough = Event()
        self.came_at_s: list[float] = []
        self.last_event = b""
        self.usage: dict[str, Any] = {}

    def read(self) -> None:
        fields = {"model": "hearth-tiny", "prompt": "Tell me about Nairobi.", "stream": True}
        fields |= {"max_tokens": STREAM_TOKENS, "ignore_eos": True, "seed": 1}
        fields |= {"stream_options": {"include_usage": True}}
        url = f"{self._url}/v1/completions"
        with requests.post(
            url, json=fields, headers=bearer(), stream=True, timeout=TIMEOUT_S
        ) as answer:
            for line in answer.iter_lines():
                self.came_at_s.append(self._cost.cpu_s())
                self.started.set()
                if self.is_enough.is_set():
                    return
                self.last_event = line or self.last_event
                if b'"usage":{' in line:
                    self.usage = json.loads(line.removeprefix(b"data: "))["usage"]

    @property
    def longest_gap_s(self) -> float:
        return max(b - a for a, b in zip(self.came_at_s, self.came_at_s[1:], strict=False))


class Cost:
    """What a process and its children take: processor time, and the most memory beyond that at
    first."""

    def __init__(self, api: ServedApi) -> None:
        process = psutil.Process(api.process.pid)
        self._tree = [process, *process.children(recursive=True)]
        self._first = self._memory_bytes()
        self.growth_bytes = 0

    def look(self) -> None:
        self.growth_bytes = max(self.growth_bytes, self._memory_bytes() - self._first)

    def cpu_s(self) -> float:
        return sum(sum(each.cpu_times()[:2]) for each in self._tree)

    def _memory_bytes(self) -> int:
        return sum(int(each.memory_info().rss) for each in self._tree)


@contextmanager
def running_stream(url: str, cost: Cost, to_the_end: bool = False) -> Iterator[Stream]:
    stream = Stream(url, cost)
    reader = Thread(target=stream.read, name="stream")
    reader.start()
    try:
        assert stream.started.wait(TIMEOUT_S)
        yield stream
    finally:
        if not to_the_end:
            stream.is_enough.set()
        reader.join(60)
    assert not reader.is_alive()


def all_at_once(url: str, body: bytes, cost: Cost) -> list[requests.Response]:
    headers = {**bearer(), "Content-Type": "application/json"}

    def send() -> requests.Response:
        return requests.post(url, data=body, headers=headers, timeout=TIMEOUT_S)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers: list[Future[requests.Response]] = [pool.submit(send) for _ in range(AT_ONCE)]
        while wait(answers, POLL_S).not_done:
            cost.look()
        return [answer.result() for answer in answers]


def test_huge_prompts_are_refused_while_a_stream_goes_on(
    model_api: ServedApi, proxy_url: str
) -> None:
    cost = Cost(model_api)
    body = b'{"text":"%b","max_tokens":1}' % (b"9" * HUGE_BYTES)
    with running_stream(proxy_url, cost, to_the_end=True) as stream:
        answers = all_at_once(f"{proxy_url}/inference", body, cost)
    assert [answer.status_code for answer in answers] == AT_ONCE * [400]
    assert f"bytes, and the prompt has {HUGE_BYTES};" in answers[0].text
    assert f"at most {CONTEXT_BYTES}" in answers[0].text
    assert stream.last_event == b"data: [DONE]"
    assert stream.usage["completion_tokens"] == STREAM_TOKENS
    assert stream.longest_gap_s < MAX_GAP_S
    assert cost.growth_bytes < MAX_GROWTH_BYTES


TURN = "<|user|>\n%s</s>\n"  # what the model's template makes of a message
TURN_BYTES = (CONTEXT_BYTES - len("<s><|assistant|>\n")) // 1024
WORST = {
    "digits": ("/inference", {"text": "9" * CONTEXT_BYTES}),
    "look-alikes": ("/predictions/hearth-tiny", {"text": "<s>" * (CONTEXT_BYTES // 3)}),
    "messages": (
        "/v1/tokenize",
        {"messages": 1024 * [{"role": "user", "content": "9" * (TURN_BYTES - len(TURN % ""))}]},
    ),
}


@pytest.mark.parametrize(("path", "fields"), WORST.values(), ids=WORST)
def test_the_largest_prompts_that_are_encoded_leave_a_stream_alone(
    model_api: ServedApi, proxy_url: str, path: str, fields: dict[str, Any]
) -> None:
    cost = Cost(model_api)
    body = json.dumps(fields).encode()
    with running_stream(proxy_url, cost) as stream:
        answers = all_at_once(f"{proxy_url}{path}", body, cost)
    assert {answer.status_code for answer in answers} == {200 if "tokenize" in path else 400}
    assert stream.longest_gap_s < MAX_GAP_S
    assert cost.growth_bytes < MAX_GROWTH_BYTES


STRUCTURE = {
    "faults": b'{"model":"hearth-tiny","prompt":[' + b"-1," * 590_000 + b"1]}",
    "lists": b'{"model":"hearth-tiny","prompt":[' + b"[]," * 1_300_000 + b"1]}",
}


@pytest.mark.parametrize("body", STRUCTURE.values(), ids=STRUCTURE)
def test_huge_lists_are_refused_while_a_stream_goes_on(
    model_api: ServedApi, proxy_url: str, body: bytes
) -> None:
    cost = Cost(model_api)
    with running_stream(proxy_url, cost) as stream:
        answers = all_at_once(f"{proxy_url}/v1/completions", body, cost)
    assert [answer.status_code for answer in answers] == AT_ONCE * [400]
    assert stream.longest_gap_s < MAX_GAP_S
    assert cost.growth_bytes < MAX_GROWTH_BYTES
