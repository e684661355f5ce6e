"""Pooled hidden states, however a prompt was cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api.core.pooling import PooledStates
from inference_api.request import Pooling

STATES = np.random.default_rng(1).normal(0, 100, (40, 24)).astype(np.float32)


def embedding(pooling: Pooling, cuts: list[int]) -> bytes:
    pooled = PooledStates(pooling)
    for begin, end in zip([0, *cuts], [*cuts, len(STATES)], strict=True):
        pooled.add(STATES[begin:end])
    return pooled.embedding()


@given(st.sets(st.integers(1, len(STATES) - 1)).map(sorted))
def test_a_mean_has_the_same_bits_however_the_prompt_was_cut(cuts: list[int]) -> None:
    assert embedding("mean", cuts) == embedding("mean", [])


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_have_unit_length(pooling: Pooling) -> None:
    states = STATES.astype(np.float64)
    expected = states.mean(axis=0) if pooling == "mean" else states[-1]
    found = np.frombuffer(embedding(pooling, [7, 9]), "<f4")
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), rtol=1e-6)


def test_states_of_nothing_but_zeros_are_a_vector_of_zeros() -> None:
    pooled = PooledStates("mean")
    pooled.add(np.zeros((2, 3), np.float32))
    assert np.frombuffer(pooled.embedding(), "<f4").tolist() == [0, 0, 0]
