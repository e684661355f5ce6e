"""Which rows are told to be bursts, on times written by hand."""

from dataclasses import replace

import pytest

from benchmarking.analysis.bursts import burst_fault
from benchmarking.analysis.compare import compare
from benchmarking.analysis.fit_points import fit_points
from benchmarking.records import RequestRecord
from tests.benchmarking.made_runs import made_record, made_run


def in_reads(tokens: int, each: int) -> RequestRecord:
    """`each` tokens a read, reads 10 ms apart."""
    chunk_s = tuple(0.1 + 0.01 * (number // each) for number in range(tokens))
    return replace(made_record(tokens=tokens), chunk_s=chunk_s)


@pytest.mark.parametrize(
    ("tokens", "each", "is_fault"),
    [(64, 1, False), (64, 4, False), (64, 8, True), (8, 4, True), (2, 2, True), (1, 1, False)],
)
def test_more_than_five_tokens_a_read_are_bursts(tokens: int, each: int, is_fault: bool) -> None:
    assert (burst_fault([in_reads(tokens, each)]) is not None) == is_fault


def test_one_event_of_many_tokens_is_a_burst_and_failures_are_none() -> None:
    whole = replace(made_record(tokens=20), chunk_s=(0.5,))
    assert burst_fault([whole, whole]) is not None
    assert burst_fault([made_record(error="500")]) is None
    assert burst_fault([]) is None


def test_bursts_are_neither_fitted_nor_compared() -> None:
    run = made_run([[in_reads(64, 16)] * 3])
    assert fit_points(run, None) == []
    measures = [change.measure for change in compare(run, run)]
    assert not any(measure.startswith("ITL") for measure in measures)
    assert "TTFT mean, ms" in measures
