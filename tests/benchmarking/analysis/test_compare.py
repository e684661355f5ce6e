"""Equal runs are called equal, slower ones slower."""

from collections import Counter

import numpy as np
import pytest

from benchmarking.analysis.compare import RowChange, Verdict, compare, unmatched
from benchmarking.records import RequestRecord, Run, Workload
from tests.benchmarking.made_runs import made_record, made_run

LOAD = Workload("m", 100, 11, 200, qps=20.0, qps_distribution="exponential")


def noisy_row(seed: int, slower: float = 1.0) -> list[RequestRecord]:
    rng = np.random.default_rng(seed)
    return [
        made_record(
            due_s=i / 20,
            ttft_s=slower * float(rng.gamma(40, 0.0025)),
            itl_s=slower * float(rng.gamma(100, 0.0001)),
        )
        for i in range(200)
    ]


def noisy_run(seeds: range, slower: float = 1.0) -> Run:
    return made_run([noisy_row(seed, slower) for seed in seeds], [LOAD] * len(seeds))


def verdicts(changes: list[RowChange], *measures: str) -> list[Verdict]:
    return [change.verdict for change in changes if change.measure in measures]


def test_a_run_equals_itself() -> None:
    run = noisy_run(range(1))
    changes = compare(run, run)
    assert {change.verdict for change in changes} == {Verdict.SAME}
    assert [change.relative.value for change in changes] == [0] * 6


def test_equal_runs_are_seldom_told_apart_and_a_slower_one_always_is() -> None:
    found: Counter[Verdict] = Counter()
    for seed in range(0, 12, 2):
        equal = compare(noisy_run(range(seed, seed + 1)), noisy_run(range(seed + 1, seed + 2)))
        found.update(verdicts(equal, "TTFT mean, ms", "ITL mean, ms", "tokens/s"))
        slower = compare(noisy_run(range(seed, seed + 1)), noisy_run(range(90, 91), 1.1))
        assert set(verdicts(slower, "TTFT mean, ms", "ITL mean, ms", "end-to-end mean, ms")) == {
            Verdict.WORSE
        }
    assert found[Verdict.SAME] >= 16


def test_repeats_give_the_interval_where_both_sides_have_them() -> None:
    changes = compare(noisy_run(range(4)), noisy_run(range(4, 8), slower=1.1))
    itl = next(change for change in changes if change.measure == "ITL mean, ms")
    assert itl.repeats == (4, 4)
    assert itl.verdict is Verdict.WORSE
    assert itl.relative.holds(0.1)
    assert itl.before == pytest.approx(10, rel=0.01)


def test_faster_is_better_and_so_are_more_tokens() -> None:
    before = made_run([[made_record(due_s=i / 10) for i in range(100)]], [LOAD])
    after = made_run([[made_record(due_s=i / 20, itl_s=0.008) for i in range(100)]], [LOAD])
    changes = compare(before, after)
    assert verdicts(changes, "ITL mean, ms", "tokens/s") == [Verdict.BETTER] * 2
    assert verdicts(compare(after, before), "tokens/s") == [Verdict.WORSE]


def test_a_sure_change_of_one_percent_is_no_finding() -> None:
    before = made_run([[made_record(itl_s=0.01) for _ in range(50)]], [LOAD])
    after = made_run([[made_record(itl_s=0.0101) for _ in range(50)]], [LOAD])
    assert verdicts(compare(before, after), "ITL mean, ms") == [Verdict.SAME]


def test_loads_of_one_run_only_are_named_and_rows_without_values_left_out() -> None:
    other = Workload("m", 100, 11, 1, concurrency=4)
    before = made_run([[made_record()], [made_record(tokens=1)]], [LOAD, other])
    after = made_run([[made_record(tokens=1)]], [other])
    assert unmatched(before, after) == [LOAD]
    assert {change.measure for change in compare(before, after)} == {
        "TTFT mean, ms",
        "TTFT p99, ms",
        "end-to-end mean, ms",
        "tokens/s",
    }
