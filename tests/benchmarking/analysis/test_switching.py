"""The documented rule on the cases that were observed, the rotation plan and the matrix."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarking.analysis.switching import batch_of, rotation, switching_matrix, three_sigma_s
from tests.benchmarking.made_runs import made_record, made_run


@pytest.mark.parametrize(
    ("ttfts_s", "switching_s"),
    [
        ([1.08, 0.08, 0.08, 0.08], 1.0),
        (
            [0.30, 0.10, 0.12, 0.08],
            0.2,
        ),  # the observed client asked for f > 2 m + 3 s and missed it
        ([0.13, 0.10, 0.12, 0.08], None),  # within three sigmas
        ([0.084, 0.08, 0.08, 0.08], None),  # no spread, yet below the floor
        ([0.5, 0.1], 0.4),  # a single other has no spread
        ([0.5], None),
        ([0.5, None, 0.1], None),
        ([], None),
    ],
)
def test_the_three_sigma_rule(ttfts_s: list[float | None], switching_s: float | None) -> None:
    assert three_sigma_s(ttfts_s) == (None if switching_s is None else pytest.approx(switching_s))


def test_one_switch_that_several_first_requests_share_is_hidden() -> None:
    """Observed: three requests waited 1.08 s as a batch of 4, eight others ran as one of 8."""
    ttfts_s = [1.08] * 3 + [0.2] * 8
    assert three_sigma_s(ttfts_s) is None
    assert three_sigma_s(ttfts_s[2:]) == pytest.approx(0.88)


def test_a_batch_is_the_next_power_of_two() -> None:
    assert [batch_of(size) for size in range(1, 10)] == [1, 2, 4, 4, 8, 8, 8, 8, 16]


@given(count=st.integers(2, 7), laps=st.integers(1, 3))
def test_a_rotation_warms_every_model_and_then_makes_every_switch_equally_often(
    count: int, laps: int
) -> None:
    models = [f"m{i}" for i in range(count)]
    visits = rotation(models, laps)
    assert visits[:count] == models
    switches = Counter(pairwise(visits[count:]))
    assert set(switches.values()) == {laps}
    assert set(switches) == {(x, y) for x in models for y in models if x != y}


def test_one_model_has_nothing_to_switch_to() -> None:
    assert rotation(["m"], 3) == ["m"]


def test_the_matrix_sets_the_servers_word_beside_the_estimate() -> None:
    run = made_run(
        [
            [made_record(model="a", server_ttft_s=9.0, switching_s=8.9), made_record(model="a")],
            [made_record(model="b", server_ttft_s=9.0, switching_s=8.9), made_record(model="b")],
            [made_record(model="a", server_ttft_s=1.1, switching_s=1.0), made_record(model="a")],
            [made_record(model="b", server_ttft_s=0.6, switching_s=0.5), made_record(model="b")],
            [made_record(model="a", server_ttft_s=0.1, switching_s=0.0), made_record(model="a")],
        ]
    )
    matrix = switching_matrix(run)
    assert set(matrix) == {("b", "a"), ("a", "b")}
    assert matrix["b", "a"].by_server_s == [1.0, 0.0]
    assert matrix["b", "a"].by_estimate_s == [pytest.approx(1.0), 0.0]
    assert matrix["a", "b"].by_server_s == [0.5]


def test_a_row_without_answers_says_nothing_of_a_switch() -> None:
    rows = [[made_record(model=model)] for model in "aba"]
    rows[2] = [made_record(model="a", error="500")]
    assert switching_matrix(made_run(rows)) == {}
