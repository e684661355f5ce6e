"""Delta rules against their formula in float64, and tokens that do not depend on cuts."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference_api.engine.cpu.decoder import MIXERS
from inference_api.kernels.interface import Floats, ffi, floats
from inference_api.kernels.library import Kernels

CONV_WIDTH = 4
EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    key_heads: int
    shared: int  # value heads of a key head
    key_dim: int
    value_dim: int
    is_tiled: bool = False
    is_doubled: bool = False
    is_kimi: bool = False

    @property
    def heads(self) -> int:
        return self.key_heads * self.shared

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    @property
    def num_steps(self) -> int:
        """Decays of a token."""
        return self.heads * (self.key_dim if self.is_kimi else 1)


SHAPES = [
    Shape(2, 2, 16, 48),
    Shape(2, 3, 48, 64, is_tiled=True, is_doubled=True),
    Shape(1, 1, 128, 128),
    Shape(1, 1, 256, 256),
    Shape(3, 1, 48, 64, is_kimi=True),
    Shape(1, 1, 256, 256, is_kimi=True),
]
SMALL = [shape for shape in SHAPES if shape.key_dim < 128]


class Layer:
    """A random layer, and a row's tokens in it."""

    def __init__(self, shape: Shape, num_tokens: int, scale: float = 1.0, seed: int = 0) -> None:
        random = np.random.default_rng(seed)

        def normal(*sizes: int) -> Floats:
            return random.standard_normal(sizes, np.float32)

        self.shape = shape
        self.conv = normal(CONV_WIDTH, shape.channels)
        self.decay = -np.exp(random.uniform(0, 2.8, shape.heads)).astype(np.float32)
        self.step_bias = random.uniform(-3, 0, shape.num_steps).astype(np.float32)
        self.head_norm = normal(shape.value_dim)
        width = shape.channels + shape.heads * shape.value_dim + shape.is_kimi * shape.num_steps
        self.rows = scale * normal(num_tokens, width)
        self.steps = 3 * normal(num_tokens, 2 * shape.heads)

    def run(self, kernels: Kernels, row: "Row", begin: int, end: int, num_kept: int = -1) -> Floats:
        """What tokens `begin` to `end` make, [tokens, heads, value_dim]. The row goes on by those
        that are kept: all, if it is not said."""
        shape = self.shape
        num_kept = end - begin if num_kept < 0 else num_kept
        description = {
            "kind": MIXERS.index("kimi_delta" if shape.is_kimi else "delta"),
            "heads": shape.heads,
            "key_heads": shape.key_heads,
            "key_dim": shape.key_dim,
            "value_dim": shape.value_dim,
            "conv_dim": shape.channels,
            "conv_width": CONV_WIDTH,
            "is_tiled": shape.is_tiled,
            "is_doubled": shape.is_doubled,
            "norm_eps": EPS,
            **{n: floats(getattr(self, n)) for n in ("conv", "decay", "step_bias", "head_norm")},
        }
        rows = self.rows[begin:end].copy()
        out = np.full((end - begin, shape.heads, shape.value_dim), np.nan, np.float32)
        arguments: Any = (
            ffi.new("HearthRecurrent *", description),
            floats(rows),
            rows.shape[1],
            floats(self.steps[begin:end].copy()),
            len(rows),
            num_kept,
            floats(row.tail),
            floats(row.state),
            floats(out),
        )
        kernels._library.hearth_delta(kernels._context, *arguments)
        inputs = np.concatenate([row.tail, rows[:num_kept, : shape.channels]])
        row.tail = np.ascontiguousarray(inputs[-CONV_WIDTH + 1 :])
        return out

    def expected(self) -> NDArray[np.float64]:
        """What all tokens make of an empty row."""
        shape, conv = self.shape, self.conv.astype(np.float64)
        rows, steps = self.rows.astype(np.float64), self.steps.astype(np.float64)
        u = np.concatenate([np.zeros((CONV_WIDTH - 1, shape.channels)), rows[:, : shape.channels]])
        mixed = silu(sum(conv[tap] * u[tap : tap + len(rows)] for tap in range(CONV_WIDTH)))
        keys_at = shape.key_heads * shape.key_dim
        queries, keys, values = np.split(mixed, (keys_at, 2 * keys_at), axis=1)
        queries = unit(by_head(queries, shape.key_heads)) * shape.key_dim**-0.5
        keys, values = unit(by_head(keys, shape.key_heads)), by_head(values, shape.heads)
        gates_end = shape.channels + shape.heads * shape.value_dim
        z = by_head(rows[:, shape.channels : gates_end], shape.heads)
        beta = (1 + shape.is_doubled) * sigmoid(steps[:, : shape.heads])
        of_steps = rows[:, gates_end:] if shape.is_kimi else steps[:, shape.heads :]
        lengths = by_head(np.log1p(np.exp(of_steps + self.step_bias)), shape.heads)
        decay = np.exp(self.decay[:, None] * lengths)  # of each head, or of its channels
        out = np.zeros_like(values)
        for head in range(shape.heads):
            of = head % shape.key_heads if shape.is_tiled else head // shape.shared
            state = np.zeros((shape.key_dim, shape.value_dim))
            for t in range(len(rows)):
                state *= decay[t, head, :, None]
                update = beta[t, head] * (values[t, head] - keys[t, of] @ state)
                state += np.outer(keys[t, of], update)
                out[t, head] = queries[t, of] @ state
        normed = out / np.sqrt((out**2).mean(-1, keepdims=True) + EPS)
        return np.asarray(normed * self.head_norm * (sigmoid(z) if shape.is_kimi else silu(z)))


class Row:
    """What a row remembers of a layer."""

    def __init__(self, shape: Shape) -> None:
        self.tail = np.zeros((CONV_WIDTH - 1, shape.channels), np.float32)
        self.state = np.zeros((shape.heads, shape.key_dim * shape.value_dim), np.float32)


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x * sigmoid(x)


def unit(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(x / np.sqrt((x**2).sum(-1, keepdims=True) + EPS))


def by_head(x: NDArray[np.float64], heads: int) -> NDArray[np.float64]:
    return x.reshape(len(x), heads, -1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tokens_are_what_the_formula_says(kernels: Kernels, shape: Shape) -> None:
    layer = Layer(shape, num_tokens=75)
    result = layer.run(kernels, Row(shape), 0, 75)
    np.testing.assert_allclose(result, layer.expected(), rtol=1e-4, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(cuts=st.sets(st.integers(1, 99), max_size=6), shape=st.sampled_from(SMALL))
def test_a_token_is_the_same_however_a_prompt_is_cut(
    kernels: Kernels, cuts: set[int], shape: Shape
) -> None:
    layer, whole, row = Layer(shape, num_tokens=100), Row(shape), Row(shape)
    expected = layer.run(kernels, whole, 0, 100)
    edges = [0, *sorted(cuts), 100]
    parts = [layer.run(kernels, row, *pair) for pair in pairwise(edges)]
    assert np.array_equal(np.concatenate(parts), expected)
    assert np.array_equal(row.state, whole.state)


@settings(max_examples=20, deadline=None)
@given(num_kept=st.integers(0, 70), drafted=st.integers(1, 32), shape=st.sampled_from(SMALL))
def test_drafts_are_as_tokens_and_leave_the_state(
    kernels: Kernels, num_kept: int, drafted: int, shape: Shape
) -> None:
    count = num_kept + drafted
    layer, row, kept = Layer(shape, num_tokens=count), Row(shape), Row(shape)
    together = layer.run(kernels, row, 0, count, num_kept)
    assert np.array_equal(together, layer.run(kernels, Row(shape), 0, count))
    layer.run(kernels, kept, 0, num_kept)
    assert np.array_equal(row.state, kept.state)


def test_extreme_steps_are_no_surprise(kernels: Kernels) -> None:
    """Steps of no length and endless ones, keys of zero."""
    layer = Layer(SHAPES[0], num_tokens=40)
    layer.steps *= 40
    layer.rows[10:20] = 0
    result = layer.run(kernels, Row(SHAPES[0]), 0, 40)
    np.testing.assert_allclose(result, layer.expected(), rtol=2e-3, atol=2e-3)
