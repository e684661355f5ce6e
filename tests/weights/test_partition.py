"""Whole layers: exact, within the caps, and the nearest to the weights that there are."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weights.errors import NoPartition
from weights.partition import (
    Layers,
    engine_settings,
    layers_of,
    partition,
    ranges,
    snapped,
    tensor_split,
)
from weights.search import Problem


@st.composite
def splits(draw: st.DrawFn) -> tuple[list[float], int, list[float], list[int]]:
    """(weights, layers, caps, fewest layers) that allow at least one partition."""
    n = draw(st.integers(2, 5))
    num_layers = draw(st.integers(1, 12))
    raw = draw(st.lists(st.floats(0, 1), min_size=n, max_size=n))
    weights = [w / sum(raw) for w in raw] if sum(raw) > 0.01 else [1 / n] * n
    high = draw(st.lists(st.integers(0, num_layers), min_size=n, max_size=n))
    while sum(high) < num_layers:
        high[high.index(min(high))] += 1
    low = [draw(st.integers(0, cap)) for cap in high]
    while sum(low) > num_layers:
        low[low.index(max(low))] -= 1
    return weights, num_layers, [cap / num_layers for cap in high], low


@given(split=splits())
def test_every_layer_is_dealt_once_within_the_caps(
    split: tuple[list[float], int, list[float], list[int]],
) -> None:
    weights, num_layers, caps, low = split
    layers = partition(weights, num_layers, caps, low)
    assert sum(layers) == num_layers
    for count, cap, lowest in zip(layers, caps, low, strict=True):
        assert lowest <= count <= round(cap * num_layers)
    parts = ranges(layers)
    assert (parts[0][0], parts[-1][1]) == (0, num_layers)
    assert all(a[1] == b[0] for a, b in pairwise(parts))


@given(split=splits())
def test_no_partition_is_nearer_to_the_weights(
    split: tuple[list[float], int, list[float], list[int]],
) -> None:
    weights, num_layers, caps, low = split

    def distance(layers: Layers) -> float:
        return sum((w * num_layers - k) ** 2 for w, k in zip(weights, layers, strict=True))

    bounds = [
        range(lowest, round(cap * num_layers) + 1) for cap, lowest in zip(caps, low, strict=True)
    ]
    nearest = min(distance(one) for one in product(*bounds) if sum(one) == num_layers)
    assert distance(partition(weights, num_layers, caps, low)) == pytest.approx(nearest, abs=1e-4)


@given(split=splits())
def test_whole_layers_stand_for_themselves(
    split: tuple[list[float], int, list[float], list[int]],
) -> None:
    weights, num_layers, caps, low = split
    problem = Problem(tuple(k / num_layers for k in low), tuple(caps), num_layers=num_layers)
    once = snapped(weights, problem)
    assert snapped(once, problem) == once
    if all(weight <= cap for weight, cap in zip(weights, caps, strict=True)) and not any(low):
        assert [k / num_layers for k in layers_of(weights, problem)] == list(once)


def test_weights_from_before_the_caps_were_lowered_stay_what_they_were() -> None:
    problem = Problem((0.0, 0.0), (0.5, 1.0), num_layers=10)
    assert snapped([0.89, 0.11], problem) == (0.9, 0.1)


def test_remainders_decide_and_ties_go_to_the_earlier_node() -> None:
    assert partition([0.45, 0.35, 0.2], 10) == (5, 3, 2)
    assert partition([0.5, 0.5], 5) == (3, 2)
    assert partition([0.3, 0.7], 10, [0.3, 0.7]) == (3, 7)
    assert partition([1.0, 0.0, 0.0], 10) == (10, 0, 0)
    assert partition([1.0, 0.0, 0.0], 10, min_layers=1) == (8, 1, 1)
    assert partition([1.0, 0.0, 0.0], 10, [0.59, 1.0, 1.0]) == (5, 3, 2)


@pytest.mark.parametrize(
    ("caps", "min_layers", "message"),
    [
        ([0.49, 0.49], 0, "the caps allow 8 of 10 whole layers"),
        ([0.1, 1.0], 2, "node 0 must take 2 layers and its cap allows 1 of 10"),
        ([1.0, 1.0], 6, "the nodes must take 12 layers and there are 10"),
    ],
)
def test_bounds_that_leave_no_partition_say_why(
    caps: list[float], min_layers: int, message: str
) -> None:
    with pytest.raises(NoPartition, match=message):
        partition([0.5, 0.5], 10, caps, min_layers)


def test_every_engine_is_told_the_same_split() -> None:
    assert engine_settings((12, 10, 10)) == {
        "layers": [[0, 12], [12, 22], [22, 32]],
        "vllm": {"VLLM_PP_LAYER_PARTITION": "12,10,10"},
        "sglang": {"SGLANG_PP_LAYER_PARTITION": "12,10,10"},
        "llama_cpp": {"--tensor-split": "11.5,10,11.5"},
        "llama_bench": {"--tensor-split": "11.5/10/11.5"},
        "exo": {"shard_assignments": [
            {"device_rank": 0, "world_size": 3, "start_layer": 0, "end_layer": 12, "n_layers": 32},
            {"device_rank": 1, "world_size": 3, "start_layer": 12, "end_layer": 22, "n_layers": 32},
            {"device_rank": 2, "world_size": 3, "start_layer": 22, "end_layer": 32, "n_layers": 32},
        ]},
        "pipeline": {"SPLIT": "12,10,10"},
    }  # fmt: skip


def placed_by_llama_cpp(split: str, num_layers: int) -> list[int]:
    """The device of each layer, in the single precision that llama.cpp computes it in."""
    sums = np.cumsum(np.array(split.split(","), dtype=np.float32), dtype=np.float32)
    places = np.arange(num_layers, dtype=np.float32) / np.float32(num_layers + 1)
    return [int(i) for i in np.searchsorted(sums / sums[-1], places, side="right")]


@given(layers=st.lists(st.integers(0, 50), min_size=2, max_size=8).filter(lambda k: sum(k) > 0))
def test_llama_cpp_places_the_layers_as_told(layers: list[int]) -> None:
    wanted = [node for node, count in enumerate(layers) for _ in range(count)]
    assert placed_by_llama_cpp(tensor_split(layers), sum(layers)) == wanted
