"""What `bench-table` computes of its turns, without a server."""

from collections.abc import Sequence
from dataclasses import replace

import psutil
import pytest

from lab.benches.table.bench import shares
from lab.benches.table.figures import Claim, Row, Spread, Turns, bound_of, gains, row_of
from lab.benches.table.text import beside_peers, bounds_text, claim_text, row_text
from lab.benches.table.turns import Counts, Server, Turn
from lab.kit.completions import Request, Stream


def turn(tokens_per_s: float, counts: Counts | None = None, text: str = "a") -> Turn:
    return Turn(
        [text], tokens_per_s, tokens_per_s, [0.02, 0.04, 0.01], counts or Counts(10, 0, 0, 10)
    )


def row(label: str, tokens_per_step: float, step_ms: float, tokens_per_s: float = 1.0) -> Row:
    rate, ratio = Spread.of([tokens_per_s]), Spread.of([1.5])
    return Row(
        label, "int8", 8, rate, ratio, rate, ratio, 5.0, None, tokens_per_step, step_ms, 100.0, True
    )


def server(label: str, plain: str = "int8") -> Server:
    """Of this very process, which serves nothing."""
    return Server(label, plain, 0, psutil.Process(), Counts.reported)


def stream(*events: str) -> Stream:
    """After a ping."""
    body = "".join(f"data: {event}\n\n" for event in events)
    return Stream((0.1, 0.3), f":\n\n{body}".encode())


def test_a_row_sums_over_rounds_and_compares_within_them() -> None:
    turns: Turns = {
        "int8": [turn(100.0), turn(200.0)],
        "int8, auto": [
            turn(150.0, Counts(20, 8, 4, 10, 10, 0.05)),
            turn(400.0, Counts(10, 2, 1, 5, 10, 0.15)),
        ],
    }
    made = row_of(server("int8, auto (x)"), 1, turns)
    assert made.tokens_per_s == Spread(275.0, 150.0, 400.0)
    assert made.ratio == Spread(1.75, 1.5, 2.0)
    assert made.ttft_ms == 20.0
    assert made.acceptance_rate == 0.5
    assert made.tokens_per_step == 2.0
    assert made.step_ms == pytest.approx(10.0)
    assert made.memory_mib > 1.0
    assert row_text(replace(made, memory_mib=512.0)) == (
        "| 1 | int8, auto (x) | 275.0 (150.0 to 400.0) | 1.75 (1.50 to 2.00) | 275.0 "
        "| 1.75 (1.50 to 2.00) | 20 | 50% | 2.00 | 512 | yes |"
    )


def test_one_other_text_in_any_round_is_told() -> None:
    turns: Turns = {"int8": [turn(1.0), turn(1.0)], "other": [turn(1.0), turn(1.0, text="b")]}
    made = row_of(server("other"), 1, turns)
    assert not made.has_same_text
    assert made.acceptance_rate is None
    assert "| NO |" in row_text(made)


def test_the_claim_compares_gains_of_the_same_round() -> None:
    labels = ("plain", "int8", "plain, medusa", "int8, medusa")
    turns: Turns = dict(
        zip(
            labels,
            (
                [turn(10.0), turn(20.0)],
                [turn(20.0), turn(60.0)],
                [turn(15.0), turn(30.0)],
                [turn(30.0), turn(81.0)],
            ),
            strict=True,
        )
    )
    assert gains(turns, "int8", "plain") == [2.0, 3.0]
    claim = Claim.of(turns, labels)
    assert claim.tokens_per_s == (15.0, 40.0, 22.5, 55.5)
    assert claim.kept == Spread(pytest.approx(0.95), pytest.approx(0.9), 1.0)  # type: ignore[arg-type]
    text = claim_text(claim)
    assert "| published, Falcon-40B | 3.9 | 10.6 (x2.72) | 5.1 (x1.31) | 13.3 (x3.41) |" in text
    assert "| here | 15.0 | 40.0 (x2.67) | 22.5 (x1.50) | 55.5 (x3.70) |" in text
    assert "both ÷ (quantised x Medusa): 0.95 (0.90 to 1.00)" in text


def test_the_bound_is_the_best_fixed_draft() -> None:
    rows = [
        row("int8", 1.0, 10.0),
        row("int8, auto", 1.8, 12.5),
        row("int8, medusa 1", 1.5, 11.0),
        row("int8, medusa 4", 2.0, 12.5),
    ]
    bound = bound_of(rows, "int8, auto", "int8")
    assert bound.users == 8
    assert bound.best == pytest.approx(1.6)
    assert bound.reached == pytest.approx(1.44)
    assert bound.share == pytest.approx(0.9)
    assert bounds_text([bound]).splitlines()[-1] == (
        "| 8 | 1.36 | 1.60 | 1.60 | 1.44 | 0.90 | 1.50 (1.50 to 1.50) |"
    )


def test_where_no_draft_pays_the_bound_is_not_to_draft() -> None:
    rows = [row("int8", 1.0, 10.0), row("auto", 1.0, 10.5), row("ngram 8", 1.2, 20.0)]
    bound = bound_of(rows, "auto", "int8")
    assert bound.best == 1.0
    assert bound.share == pytest.approx(1 / 1.05)


def test_ours_is_compared_with_the_fastest_peer_of_each_load() -> None:
    rows = [row("int8, auto", 1, 1, 30.0), row("llama.cpp", 1, 1, 10.0)]
    rows.append(row("llama.cpp, lookup (cache)", 1, 1, 20.0))
    assert list(beside_peers(rows, "int8, auto", "llama.cpp")) == [
        "8 users: int8, auto ÷ llama.cpp, lookup (cache) = 1.50"
    ]
    assert list(beside_peers(rows[:1], "int8, auto", "llama.cpp")) == []


def test_rounds_share_the_prompts() -> None:
    asked = [Request((number,), 4) for number in range(5)]

    def prompts(of: Sequence[Sequence[Request]]) -> list[list[int]]:
        return [[request.prompt[0] for request in each] for each in of]

    assert prompts(shares(asked, 2, 2)) == [[0, 1], [2, 3]]
    assert prompts(shares(asked, 4, 2)) == [[0, 1, 2, 3], [4, 0, 1, 2]]


def test_a_stream_is_text_and_the_count_of_its_last_event() -> None:
    answer = stream(
        '{"choices": [{"text": "one "}]}',
        '{"choices": [{"text": "two"}]}',
        '{"choices": [], "usage": {"completion_tokens": 3}}',
        "[DONE]",
    )
    assert answer.text == "one two"
    assert answer.num_tokens == 3


def test_llama_cpp_reports_drafts_with_each_answer() -> None:
    drafted = '"timings": {"draft_n": 8, "draft_n_accepted": 4}'
    usage = '"choices": [], "usage": {"completion_tokens": 12}'
    counts = Counts.reported(
        [stream(f"{{{usage}, {drafted}}}"), stream(f'{{{usage}, "timings": {{}}}}')]
    )
    assert counts == Counts(24, 8, 4, 20)
    assert counts.tokens_per_step == 1.2
    assert counts.since(Counts()) == counts
