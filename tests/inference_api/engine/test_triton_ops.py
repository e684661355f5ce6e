"""Operations by Triton against torch's in float64, and their bits against themselves.

Where there is no CUDA, Triton's interpreter runs them: it knows no bfloat16, and no races.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.engine.cuda.inputs import token_inputs
from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.engine.cuda.ops import (
    MAX_PRODUCT_TOKENS,
    POSITIONS,
    SLOTS,
    STEP_LINES,
    Affine,
    LayerHeads,
)
from inference_api.engine.cuda.panels import Panels, unpacked
from inference_api.engine.cuda.rope import Rope
from inference_api.engine.cuda.torch_ops import TorchOps
from inference_api.engine.cuda.triton_ops import TritonOps, num_parts
from inference_api.kernels.packing import BITS, Bits
from inference_api.loading.config import ModelConfig, RopeConfig, SwiGluConfig
from inference_api.runner import RowStep
from tests.inference_api.engine import test_torch_ops as of_torch
from tests.inference_api.engine.test_panels import all_bits, panels
from tests.inference_api.engine.test_torch_ops import CONTEXT, LENGTHS, ROWS, SHAPES, draws

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SPLIT = 32  # so that few positions are several
FLOAT32, FLOAT16 = torch.float32, torch.float16
TOLERANCES = {FLOAT32: 1e-5, FLOAT16: 4e-3}
dtypes = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
PLAIN = [RowStep(3, CONTEXT - 1, (0,), draws(1)), RowStep(2, 0, (0,), draws(1))]
DRAFTED = [
    RowStep(0, 31, [0] * 2, draws(2)),
    RowStep(1, 57, [0] * 5, draws(5), (-1, 0, 0, 1, -1)),
]


@pytest.fixture(autouse=True)
def _poisoned(interpreter: None) -> Iterator[None]:
    """What is not written is no number; on CUDA, cuBLAS would refuse."""
    torch.use_deterministic_algorithms(DEVICE.type == "cpu")
    with np.errstate(all="ignore"):
        yield
    torch.use_deterministic_algorithms(False)


class Both(NamedTuple):
    """Ours over a cache of random keys and values, and torch's in float64 over the same."""

    config: ModelConfig
    ours: TritonOps
    exact: TorchOps


def both(shape: tuple[int, int, int], dtype: torch.dtype = FLOAT32, **changed: Any) -> Both:
    of = of_torch.made(shape, **changed)
    caches = [TorchCache(of.config, ROWS, CONTEXT, DEVICE, each) for each in (dtype, torch.float64)]
    for cache in caches:
        cache.entries.copy_(of.cache.entries.to(dtype))
    ropes = [Rope(of.config, CONTEXT, DEVICE, each) for each in (dtype, torch.float64)]
    return Both(
        of.config,
        TritonOps(of.config, caches[0], ropes[0], SPLIT),
        TorchOps(of.config, caches[1], ropes[1]),
    )


def made(*shape: int, seed: int, dtype: torch.dtype = FLOAT32) -> Tensor:
    return of_torch.random(*shape, seed=seed).to(DEVICE, dtype)


def inputs_of(steps: list[RowStep]) -> Tensor:
    return torch.from_numpy(token_inputs(steps, [0] * len(steps))).to(DEVICE)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCES[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("shape", "layer", "dtype"),
    [(shape, index % 2, (FLOAT16, FLOAT32)[index > 0]) for index, shape in enumerate(SHAPES)],
    ids=str,
)
def test_tokens_attend_to_what_is_before_them(
    shape: tuple[int, int, int], layer: int, dtype: torch.dtype
) -> None:
    """Within a window, or to all and sinks."""
    of = both(shape, dtype)
    sinks = made(of.config.num_heads, seed=0) + 1.0 if layer else None
    heads = LayerHeads(layer, None, sinks)
    inputs = inputs_of([*PLAIN, *DRAFTED])
    queries = made(inputs.shape[1], of.config.num_heads, of.config.head_dim, seed=1, dtype=dtype)
    expected = of.exact.tokens(inputs, LENGTHS).attend(queries.double(), heads)
    assert_close(of.ours.tokens(inputs, LENGTHS).attend(queries, heads), expected)


def test_the_longest_tree_attends_by_its_branches() -> None:
    of = both((16, 1, 1))
    tree = of_torch.longest_tree()
    inputs = inputs_of([RowStep(1, CONTEXT - len(tree), tree, draws(len(tree)), tree)])
    queries = made(len(tree), 1, 16, seed=1)
    heads = LayerHeads(1, None, None)
    exact = of.exact.tokens(inputs, LENGTHS)
    actual = of.ours.tokens(inputs, LENGTHS).attend(queries, heads)
    assert_close(actual, exact.attend(queries.double(), heads))


def test_bits_are_the_same_alone_and_at_every_place_beside_any() -> None:
    """With more room than tokens, absent ones that are no numbers, and an untouched cache."""
    of = both((24, 1, 3))
    width = (3 + 2) * 24
    heads = LayerHeads(1, made(3 + 1, 24, seed=8), made(3, seed=9))
    inputs = inputs_of([*DRAFTED, *PLAIN])
    num_tokens = inputs.shape[1]
    qkv = made(num_tokens, width, seed=3)

    def outputs(columns: list[int | None], room: int) -> Tensor:
        """Of these tokens, None: an absent one."""
        of_step = torch.zeros(STEP_LINES, len(columns), dtype=torch.int64, device=DEVICE)
        of_step[POSITIONS] = -1
        of_step[SLOTS:] = of.ours.cache.capacity - 1
        given = torch.full((room, width), torch.nan, device=DEVICE)
        for place, column in enumerate(columns):
            if column is not None:
                of_step[:, place] = inputs[:, column]
                given[place] = qkv[column]
        tokens = of.ours.tokens(of_step, LENGTHS)
        attended = tokens.attend(tokens.place_heads(given, heads), heads)
        absent = [place for place in range(room) if (columns + [None] * room)[place] is None]
        assert not attended[absent].any()
        return attended

    expected = outputs([*range(num_tokens)], num_tokens)
    before = of.ours.cache.entries.clone()
    rng = random.Random(1)
    for column in rng.sample(range(num_tokens), 2):
        assert torch.equal(outputs([column], 1)[0], expected[column])
        others = rng.sample([each for each in range(num_tokens) if each != column], 2)
        columns: list[int | None] = [column, *others, None]
        rng.shuffle(columns)
        assert torch.equal(outputs(columns, 5)[columns.index(column)], expected[column])
    assert torch.equal(of.ours.cache.entries, before)


@pytest.mark.parametrize(
    ("norm", "rotary_dim", "dtype"),
    [(None, 24, FLOAT16), ("first", 8, FLOAT32), ("last", 24, FLOAT32), ("whole", 8, FLOAT32)],
)
def test_heads_are_normalised_and_turned_and_written(
    norm: str | None, rotary_dim: int, dtype: torch.dtype
) -> None:
    """A layer that scales its queries, and one that turns nothing."""
    growing = RopeConfig(query_growth=0.1, original_max_positions=16)
    of = both(
        (24, 2, 3),
        dtype,
        is_qk_norm_whole=norm == "whole",
        is_qk_norm_last=norm == "last",
        ropes=(growing, None),
        rotary_dim=rotary_dim,
    )
    inputs = inputs_of([RowStep(3, CONTEXT - 1, (0,), draws(1)), DRAFTED[0]])
    weight = None if norm is None else made(8, 24, seed=4, dtype=dtype)
    for layer in range(2):
        qkv = made(inputs.shape[1], 10 * 24, seed=3, dtype=dtype)
        exact_heads = LayerHeads(layer, None if weight is None else weight.double(), None)
        exact = of.exact.tokens(inputs, LENGTHS)
        expected = exact.place_heads(qkv.double(), exact_heads)
        actual = of.ours.tokens(inputs, LENGTHS)
        assert_close(actual.place_heads(qkv, LayerHeads(layer, weight, None)), expected)
        assert_close(of.ours.cache.entries[layer], of.exact.cache.entries[layer])


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("size", [64, 96])
@dtypes
def test_what_was_made_is_normalised_and_added_and_the_sum_normalised(
    kind: str, size: int, dtype: torch.dtype
) -> None:
    of = both((8, 2, 3), dtype, norm=kind, residual_multiplier=0.25)
    x, what = (made(3, size, seed=seed, dtype=dtype) for seed in (1, 2))
    norms = [
        Affine(made(size, seed=3 + each, dtype=dtype), bias if kind == "layer" else None)
        for each, bias in enumerate(made(2, size, seed=5, dtype=dtype))
    ]
    for made_norm, norm in [(None, norms[1]), (norms[0], norms[1]), (norms[0], None)]:
        for each in (what, None):
            expected = of.exact.norm_add(
                x.double(), None if each is None else each.double(), wide(made_norm), wide(norm)
            )
            actual = of.ours.norm_add(x, each, made_norm, norm)
            for own, exact in zip(actual, expected, strict=True):
                assert_close(own, exact)


def wide(norm: Affine | None) -> Affine | None:
    if norm is None:
        return None
    return Affine(norm.weight.double(), None if norm.bias is None else norm.bias.double())


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu", "relu2", "swiglu"])
@pytest.mark.parametrize("is_gated", [True, False])
@dtypes
def test_gates_let_pass_what_is_behind_them(
    activation: str, is_gated: bool, dtype: torch.dtype
) -> None:
    is_clamped = activation == "swiglu"
    of = both(
        (8, 2, 3),
        dtype,
        activation="silu" if is_clamped else activation,
        is_mlp_gated=is_gated,
        swiglu=SwiGluConfig(limit=1.5, alpha=1.7) if is_clamped else None,
    )
    up = made(2, 2 * 1050, seed=1, dtype=dtype) * 2
    assert_close(of.ours.gate(up), of.exact.gate(up.double()))


INPUTS = 288  # so that parts are unlike
PARTS = 2


def on_device(matrix: Panels) -> Panels:
    return replace(matrix, blocks=matrix.blocks.to(DEVICE))


def weights_of(bits: Bits) -> list[Panels]:
    """Of outputs that are more than a program's, then of other bits, then of an expert's."""
    other = BITS["int8"] if bits == 4 else BITS["int4"]
    others, stacked = panels(32, INPUTS, other)[0], panels(80, INPUTS, bits, seed=3)[0]
    return [*map(on_device, (panels(75, INPUTS, bits)[0], others, stacked.parts(2)[1]))]


@pytest.mark.parametrize(("bits", "dtype"), [(8, FLOAT32), (4, FLOAT16)])
def test_products_equal_those_by_the_numbers(bits: Bits, dtype: torch.dtype) -> None:
    """By tokens that are more than a program's, in parts that are whole in the operations behind
    them."""
    of, weights = both((8, 2, 3), dtype), weights_of(bits)
    x, bias = made(18, INPUTS, seed=1, dtype=dtype), made(147, seed=2, dtype=dtype)
    for given, parts in ((weights, PARTS), (weights[:1], PARTS)):
        width = sum(each.outputs for each in given)
        assert num_parts(width, INPUTS) == parts
        actual = of.ours.multiply(x, given, bias[:width])
        assert actual.shape == (parts, 18, width)
        expected = of.exact.multiply(x.double(), given, bias[:width].double())
        torch.testing.assert_close(actual.double().sum(0), expected, atol=1e-3, rtol=1e-4)


def test_a_token_times_weights_has_its_own_bits() -> None:
    """Beside any, which may be no numbers, and at any place; by 4 bits, then by 8."""
    of, weights = both((8, 2, 3)), weights_of(8)[1:]
    x = made(20, INPUTS, seed=1)
    whole = of.ours.multiply(x, weights, None)
    x[17] = torch.nan
    for columns in ([3], [19, 17, 0, 3], [*range(4, 20), 3, 17]):
        place = columns.index(3)
        assert torch.equal(of.ours.multiply(x[columns], weights, None)[:, place], whole[:, 3])


@all_bits
def test_many_tokens_are_multiplied_by_widened_weights(bits: Bits) -> None:
    of, weights = both((8, 2, 3)), weights_of(bits)
    x, bias = made(MAX_PRODUCT_TOKENS + 1, INPUTS, seed=1), made(147, seed=2)
    numbers = torch.cat([*map(unpacked, weights)])
    assert torch.equal(of.ours.multiply(x, weights, bias), F.linear(x, numbers, bias))
    rows = torch.tensor([74, 0, 31, 32, 33], device=DEVICE)
    assert torch.equal(of.ours.embed(rows, weights[0]), of.exact.embed(rows, weights[0]).float())


@dtypes
def test_what_comes_in_parts_is_added_first(dtype: torch.dtype) -> None:
    """By all operations that take products."""
    of = both((24, 2, 3), dtype, is_qk_norm_whole=True)
    parts, x = made(3, 2, 10 * 24, seed=1), made(2, 240, seed=2, dtype=dtype)
    added = parts.double().sum(0)
    norm = Affine(made(240, seed=3, dtype=dtype), None)
    for own, exact in zip(
        of.ours.norm_add(x, parts, norm, norm),
        of.exact.norm_add(x.double(), added, wide(norm), wide(norm)),
        strict=True,
    ):
        assert_close(own, exact)
    assert_close(of.ours.gate(parts), of.exact.gate(added))
    inputs = inputs_of([RowStep(3, 7, (0,), draws(1)), RowStep(1, 0, (0,), draws(1))])
    heads = LayerHeads(0, made(8, 24, seed=4, dtype=dtype), None)
    tokens, exact_tokens = (ops.tokens(inputs, LENGTHS) for ops in (of.ours, of.exact))
    assert heads.qk_norm is not None
    exact_heads = LayerHeads(0, heads.qk_norm.double(), None)
    assert_close(tokens.place_heads(parts, heads), exact_tokens.place_heads(added, exact_heads))
    assert_close(of.ours.cache.entries[0], of.exact.cache.entries[0])
