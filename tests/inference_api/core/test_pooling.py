"""Pooled hidden states, however a prompt was cut."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference_api.core.pooling import PooledStates
from inference_api.request import Pooling

STATES = torch.randn(40, 24, generator=torch.Generator().manual_seed(1)) * 100


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
    states = STATES.double().numpy()
    expected = states.mean(axis=0) if pooling == "mean" else states[-1]
    found = np.frombuffer(embedding(pooling, [7, 9]), "<f4")
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), rtol=1e-6)


def test_states_of_nothing_but_zeros_are_a_vector_of_zeros() -> None:
    pooled = PooledStates("mean")
    pooled.add(torch.zeros(2, 3))
    assert np.frombuffer(pooled.embedding(), "<f4").tolist() == [0, 0, 0]
