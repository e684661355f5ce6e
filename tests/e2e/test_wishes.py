"""The README and the pages of docs/wishes, followed to the letter with the API and the proxy that
one of them starts; and what else a reader may expect of these two.

`unequal-machines.md` is followed by test_pipeline.py, which has a server of several processes.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jwt
import pytest
import requests

from lab.kit.servers import ROOT, TIMEOUT_S, ServedApi, eventually
from tests.e2e.test_make_serve import Stack, assert_curl_line_streams, started
from tests.followed_pages import DOCS, Reader, blocks, served_by

WISHES = DOCS / "wishes"
OWN_MODEL, TEAM = WISHES / "own-model.md", WISHES / "team.md"
HOW_MANY = WISHES / "how-many-gpus.md"
LIMITS = ("POLICY_FILE=policy.yaml", "REVOKED_TOKENS_FILE=revoked.txt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the reader's own model, and the files that the team's page makes first."""
    folder = tmp_path_factory.mktemp("wishes")
    (folder / "models").mkdir()
    (folder / "models" / "mine").symlink_to(ROOT / "models" / "hearth-tiny")
    Reader(folder, {}).run(blocks(TEAM)[0])
    return folder


@pytest.fixture(scope="module")
def stack(folder: Path) -> Iterator[Stack]:
    own = Reader(folder, {}).environment()
    with started(folder / "log", served_by(TEAM), folder, **own) as stack:
        yield stack
        interrupt_ends_both_processes(stack)  # last of all, whatever the order of the tests


def interrupt_ends_both_processes(stack: Stack) -> None:
    os.kill(stack.process.pid, signal.SIGINT)
    assert stack.process.wait(TIMEOUT_S) == 0
    for url in (stack.api, stack.proxy):
        with pytest.raises(requests.ConnectionError):
            requests.get(url, timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def reader(stack: Stack, folder: Path) -> Reader:
    real = {"http://127.0.0.1:7000": stack.api, "http://127.0.0.1:1223": stack.proxy}
    return Reader(folder, real)


def test_every_command_of_the_pages_is_followed() -> None:
    pages = [*WISHES.glob("*.md")]
    assert len(pages) == 5
    for page in pages:
        fences = re.findall(r"^```(?:sh|python).*$", page.read_text(), re.MULTILINE)
        assert fences
        assert all(fence.endswith((" run", " serve")) for fence in fences), page.name


def test_both_pages_serve_by_the_same_command_but_for_the_limits() -> None:
    assert served_by(OWN_MODEL) == [word for word in served_by(TEAM) if word not in LIMITS]


def test_a_model_of_ones_own_answers(reader: Reader) -> None:
    listed_and_asked, streamed = reader.follow(OWN_MODEL)
    models, answer = listed_and_asked.strip().splitlines()
    assert json.loads(models)["data"][0]["id"] == "mine"
    assert "Paris" in json.loads(answer)["choices"][0]["message"]["content"]
    assert streamed


def test_a_team_has_tokens_and_limits(reader: Reader) -> None:
    pages = reader.follow(TEAM)
    answer = [next(pages) for _ in range(3)][-1]
    assert "Paris" in json.loads(answer)["choices"][0]["message"]["content"]
    assert len([*pages]) == 2  # what holds, as the page says; and one token taken back
    asked = blocks(TEAM)[3]
    assert "research.token" in asked.text
    eventually(lambda: json.loads(reader.run(asked)).get("status_code") == 401)


def test_the_readme_is_followed(reader: Reader, stack: Stack, model_api: ServedApi) -> None:
    own = replace(reader, addresses={"http://127.0.0.1:7000": model_api.url})
    pages = own.follow(ROOT / "README.md")
    answer, token = (next(pages) for _ in range(2))
    assert "Paris is a city in France" in answer.replace("\n", " ")
    bearer = {"Authorization": f"Bearer {token.strip()}"}
    assert (
        requests.get(f"{stack.proxy}/v1/models", headers=bearer, timeout=TIMEOUT_S).status_code
        == 200
    )
    assert blocks(ROOT / "README.md")[-1] == blocks(HOW_MANY)[0], "it is followed below"


def test_accelerators_are_counted_before_anything_runs(tmp_path: Path) -> None:
    (answer,) = Reader(tmp_path, {}).follow(HOW_MANY)
    assert answer.startswith("llama-3.1-8b in ")
    assert "What would change it" in answer


def test_any_server_is_measured_and_judged(reader: Reader, slow_api: ServedApi) -> None:
    # A fast one would be sent, and answer, hundreds of requests a second.
    reader = replace(reader, addresses={"http://127.0.0.1:8000": slow_api.url})
    (said,) = reader.follow(WISHES / "measure-any-server.md")
    *_, report, verdict = said.splitlines()
    assert verdict.startswith(("Meets TTFT", "Misses "))
    assert (reader.folder / report.removeprefix("report in ")).is_file()


def test_printed_curl_line_streams_an_answer(stack: Stack) -> None:
    assert_curl_line_streams(stack)


def test_proxy_refuses_who_has_no_good_token(stack: Stack) -> None:
    forged = jwt.encode({"team_id": "x"}, "not the secret, but thirty-two bytes of text")
    for headers in ({}, {"Authorization": f"Bearer {forged}"}):
        response = requests.post(
            f"{stack.proxy}/inference", json={"text": "hi"}, headers=headers, timeout=TIMEOUT_S
        )
        assert response.status_code == 401


def test_client_that_leaves_through_the_proxy_frees_its_row(stack: Stack) -> None:
    body = {"text": "Tell me a story about a fox.", "max_tokens": 2000}
    stream = requests.post(
        f"{stack.proxy}/inference",
        json=body,
        headers=stack.authorization(),
        stream=True,
        timeout=TIMEOUT_S,
    )
    stream.close()

    def is_idle() -> bool:
        state = requests.get(f"{stack.api}/ready", timeout=TIMEOUT_S).json()
        return [state["busy_rows"], state["queued"], state["sessions"]] == [0, 0, 0]

    assert eventually(is_idle)


def test_drain_is_not_for_clients_of_the_proxy(stack: Stack) -> None:
    response = requests.post(
        f"{stack.proxy}/drain", headers=stack.authorization(), timeout=TIMEOUT_S
    )
    assert response.status_code == 403
    assert requests.get(f"{stack.api}/ready", timeout=TIMEOUT_S).json()["status"] == "ready"
