"""Figures of `bench-replicas`, and its pins."""

import os
import subprocess
import sys
from math import inf

import pytest

from benchmarking.load.generator import TimedExchange
from lab.benches.replicas.bench import (
    Turn,
    freest_core,
    is_kept,
    on_core,
    shares_of_linear,
    table,
    tokens_between,
    verdict,
)


def turn(tokens_per_s: float) -> Turn:
    return Turn(tokens_per_s, proxy_s=30e-6, replicas_s=200e-6, client_share=0.05)


def exchange(chunk_s: list[float], tokens: int | None) -> TimedExchange:
    usage = None if tokens is None else {"completion_tokens": tokens}
    texts = ["x"] * len(chunk_s)
    return TimedExchange(0, 0.0, 0.0, 9.0, chunk_s, texts, usage, 200, "length", None)


def test_tokens_are_spread_over_the_pieces_of_their_answer() -> None:
    exchanges = [exchange([1.0, 2.0, 3.0, 4.0], 8), exchange([3.0], 5), exchange([], 0)]
    assert tokens_between(exchanges, 0.0, inf) == pytest.approx(13)
    assert tokens_between(exchanges, 2.0, 4.0) == pytest.approx(4 + 5)
    assert tokens_between([exchange([1.0], None)], 0.0, inf) == 0


def test_replicas_take_cores_in_turn() -> None:
    taken: list[int] = []
    for _ in range(5):
        taken.append(freest_core((0, 3), taken))
    assert taken == [0, 3, 0, 3, 0]


def test_rounds_are_compared_with_one_replica_of_the_same_round() -> None:
    turns = {
        1: [turn(100), turn(200)],
        2: [turn(200), turn(400)],
        3: [turn(240), turn(480)],
    }
    of_linear = shares_of_linear(turns)
    assert of_linear[2].value == pytest.approx(1.0)
    assert of_linear[3].value == of_linear[3].low == of_linear[3].high == pytest.approx(0.8)
    assert not is_kept(of_linear)
    assert verdict(of_linear).startswith("MISS 2 replicas 1 [1, 1] of linear, 3 replicas 0.8")
    assert is_kept({2: of_linear[2]})
    rows = table(turns, of_linear)
    assert len(rows) == 2 + len(turns)
    assert rows[2] == "| 1 | 150 [-485.3, 785.3] |  | 200.0 | 30.0 | 5.0% | 0.08 |"


def test_what_starts_on_a_core_stays_there() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    with on_core(core):
        command = "import os; print(os.sched_getaffinity(0))"
        shown = subprocess.run(
            [sys.executable, "-c", command], capture_output=True, text=True, check=True
        ).stdout
    assert shown.strip() == str({core})
    assert os.sched_getaffinity(0) == before
