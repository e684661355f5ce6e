"""Grids hold what the file says, and the search finds none that is worse than plain rounding's."""

from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from scripts.quantize.blocks import stored
from scripts.quantize.grids import FORMS, Floats, Form, Grid, plain, searched
from scripts.quantize.rounding import Feedback, rounded

BLOCKS = 3
ROUNDING = 1 + 1e-5  # of sums in float32
FORM = pytest.mark.parametrize("form", FORMS.values(), ids=[kind.name for kind in FORMS])


def drawn(form: Form, seed: int, rows: int = BLOCKS, blocks: int = 1) -> Floats:
    """Weights with outliers, some rows shifted to one side, one of zeros."""
    generator = np.random.default_rng(seed)
    weights = generator.standard_t(4, (rows, blocks * form.block_inputs)) * 0.05
    weights += generator.choice([-0.1, 0, 0, 0.1], (rows, 1))
    weights[rows // 2] *= generator.integers(2)
    return weights.astype(np.float32)


def numbers(form: Form, data: NDArray[np.uint8]) -> Floats:
    """By the package that defines the formats."""
    return np.asarray(gguf.quants.dequantize(data, form.kind), np.float32)


def error(weights: NDArray[Any], other: NDArray[Any], importance: Any = 1) -> float:
    difference = weights.astype(np.float64) - other
    return float((importance * difference**2).sum())


@FORM
@given(seed=st.integers(0, 2**32))
@settings(max_examples=20)
def test_bytes_stand_for_the_numbers_of_the_grid(form: Form, seed: int) -> None:
    generator = np.random.default_rng(seed)
    shape = (BLOCKS, form.num_groups)
    signed = 0 if form.has_floors else -form.most_scale
    one = form.most_scale == 1
    grid = Grid(
        form,
        generator.uniform(0.001, 0.01, (BLOCKS, 2)).astype(np.float16),
        np.ones(shape, np.int32) if one else generator.integers(signed, form.most_scale + 1, shape),
        generator.integers(0, 64, shape) * form.has_floors,
    )
    low, high = form.values
    every = form.table or range(low, high + 1)
    values = generator.choice(every, (*shape, form.block_inputs // form.num_groups))
    meant = values.astype(np.float32) * grid.steps - grid.floors
    data = stored(grid, values.astype(np.float32))
    assert np.array_equal(numbers(form, data), meant.reshape(BLOCKS, -1))


@FORM
@given(
    weights=arrays.arrays(
        np.float32, (BLOCKS, 256), elements=st.floats(-1000, 1000, width=32, allow_subnormal=False)
    ),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=20)
def test_searched_error_is_at_most_that_of_plain_rounding(
    form: Form, weights: Floats, seed: int
) -> None:
    blocks = weights[:, : form.block_inputs]
    importance = np.random.default_rng(seed).uniform(0.1, 10, form.block_inputs).astype(np.float32)

    def error_of(grid: Grid) -> float:
        written = numbers(form, stored(grid, grid.nearest(form.grouped(blocks))))
        return error(blocks, written, importance)

    assert error_of(searched(form, blocks, importance)) <= error_of(plain(form, blocks)) * ROUNDING


def test_searched_error_is_below_the_packages_rounding() -> None:
    form = FORMS[gguf.GGMLQuantizationType.Q5_0]
    weights = drawn(form, seed=1, rows=64, blocks=4)
    theirs = error(weights, numbers(form, gguf.quants.quantize(weights, form.kind)))
    assert error(weights, numbers(form, rounded(form, weights))) < 0.95 * theirs


@FORM
def test_inputs_that_never_come_together_are_rounded_alone(form: Form) -> None:
    weights = drawn(form, seed=2, blocks=2)
    alone = Feedback.of(np.eye(weights.shape[1]))
    assert np.array_equal(rounded(form, weights, alone), rounded(form, weights))
    assert Feedback.of(np.zeros((2, 2))) is None


@FORM
def test_feedback_keeps_outputs_nearer(form: Form) -> None:
    weights = drawn(form, seed=3, rows=32, blocks=2)
    generator = np.random.default_rng(4)
    inputs = weights.shape[1]
    sources = generator.standard_normal((4 * inputs, inputs // 4))
    given = sources @ generator.standard_normal((inputs // 4, inputs))
    given += 0.1 * generator.standard_normal(given.shape)
    feedback = Feedback.of(given.T @ given)
    alone, together = (
        error(weights @ given.T, numbers(form, data) @ given.T)
        for data in (rounded(form, weights), rounded(form, weights, feedback))
    )
    assert together < 0.7 * alone
