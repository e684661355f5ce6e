"""What `bench-peers` and `bench-quality` are made of, without a peer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from inference_api.settings import EMBEDDED_MODEL
from inference_api.text.tokens import load_tokenizer
from lab.benches.engine import quality as bench_quality
from lab.benches.serve.peers import LOADS, contests
from lab.models.random_model import byte_tokenizer
from lab.peers import report as peer_report
from lab.peers.mistral_rs import text_of
from lab.peers.process import run
from lab.peers.report import Cell, Measurement


class OneTokenAStep:
    """An engine that gives every running user a token in each step, and notes who ran together."""

    def __init__(self) -> None:
        self.prompts: list[tuple[int, list[int]]] = []
        self.together: list[int] = []
        self._left: dict[int, int] = {}

    def add(self, user: int, prompt: Sequence[int], max_tokens: int) -> None:
        assert user not in self._left
        self.prompts.append((user, list(prompt)))
        self._left[user] = max_tokens

    def step(self) -> tuple[int, list[int]]:
        self.together.append(len(self._left))
        num_new = len(self._left)
        self._left = {user: left - 1 for user, left in self._left.items()}
        finished = [user for user, left in self._left.items() if left == 0]
        for user in finished:
            del self._left[user]
        return num_new, finished


def test_users_send_their_next_request_when_the_last_is_answered() -> None:
    engine = OneTokenAStep()
    result = run(engine, [[[1], [2]], [[3]]], max_tokens=3)
    assert engine.prompts == [(0, [1]), (1, [3]), (0, [2])]
    assert engine.together == [2, 2, 2, 1, 1, 1]
    assert result["tokens"] == 9
    assert result["seconds"] > 0


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_prompts_are_of_their_length_and_never_repeat(load: object) -> None:
    assert isinstance(load, type(LOADS["1"]))
    turns = [load.prompts(seed) for seed in range(3)]
    requests = [tuple(prompt) for turn in turns for user in turn for prompt in user]
    assert {len(prompt) for prompt in requests} == {load.prompt_tokens}
    assert len(set(requests)) == len(requests) == 3 * load.users * load.rounds
    assert load.prompts(1) == turns[1]


def test_loads_of_one_user_have_a_contest_of_their_own() -> None:
    names = ["1", "8", "prefill-512", "32", "prefill-8192"]
    together = [[load.users for load in loads] for loads in contests(names)]
    assert together == [[1, 1, 1], [8, 32]]
    assert contests(["8"]) == [[LOADS["8"]]]


def test_results_gather_and_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_report, "RESULTS", tmp_path / "bench" / "peers.jsonl")
    ours = Measurement("hearth int8", "int8", [20.0, 30.0, 40.0])
    theirs = Measurement("other Q8_0", "1.0; AVX", [10.0, 10.0, 16.0])
    peer_report.keep(Cell("110m", "int8", "1 user"), "a machine", [ours, ours])
    peer_report.keep(Cell("110m", "int8", "8 users"), "a machine", [ours, theirs])
    rows = peer_report.keep(Cell("110m", "int8", "1 user"), "a machine", [ours, theirs])
    assert "| 110m int8 | 1 user | other Q8_0 | 10.0 (10.0 to 16.0) | 3.00 (2.00 to 3.00) |" in rows
    text = peer_report.table()
    assert text.count("other Q8_0") == 2
    assert "other: 1.0; AVX" in text
    assert peer_report.chart().count("<rect") == 4


@pytest.mark.parametrize("name", ["bytes", "words"])
def test_a_prompt_for_mistral_rs_has_the_tokens_of_the_others(name: str) -> None:
    words = load_tokenizer(EMBEDDED_MODEL, frozenset())
    tokenizer: Any = words if name == "words" else byte_tokenizer(vocab_size=300)

    def count(text: str) -> int:
        return len(tokenizer.encode(text))

    [first], [other] = LOADS["8"].prompts(0)[:2]
    texts = [text_of(prompt, count) for prompt in (first, other)]
    assert [count(text) for text in texts] == [len(first), len(other)]
    assert texts[0] != texts[1]


def test_windows_hold_every_token_once_after_bos() -> None:
    tokens = [7, *range(100, 1100)]
    pieces = bench_quality.windows(tokens, window=256)
    assert all(piece[0] == 7 and len(piece) <= 256 for piece in pieces)
    assert [token for piece in pieces for token in piece[1:]] == tokens[1:]
