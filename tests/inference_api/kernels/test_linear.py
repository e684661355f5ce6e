"""The matrix product against float64, over shapes and numbers it is not made for."""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from inference_api.kernels.library import Kernels, PackedWeight, UnusableWeight, supported_variants
from inference_api.kernels.packing import GROUP, Bits

BITS: tuple[Bits, ...] = (8, 4)
FLOATS: tuple[Bits, ...] = (32, 16)
FORMS = (*FLOATS, *BITS)
LARGEST_INT8 = 127
# Rows: of tiles of every size alone and beside others, and of whole and broken ones of 16.
COUNTS = (*range(1, 14), 16, 17, 31, 32, 33, 48, 49, 65)
WEIGHT_ERRORS: dict[Bits, float] = {8: 0.007, 4: 0.1}  # relative, of normal weights


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def packed(kernels: Kernels, weights: Tensor, bits: Bits) -> PackedWeight:
    weight = PackedWeight.empty(bits, *weights.shape)
    kernels.pack(numbers(weights), weight)
    return weight


def numbers(tensor: Tensor) -> NDArray[Any]:
    """As the kernels have them."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def linear(kernels: Kernels, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    own_bias = None if bias is None else bias.numpy()
    return torch.from_numpy(kernels.linear(x.contiguous().numpy(), weight, own_bias))


def unpacked(weight: PackedWeight) -> Tensor:
    return torch.from_numpy(weight.unpack())


def rounded(x: Tensor) -> Tensor:
    """What 8 bits leave of each group of 32, computed in float64."""
    groups = x.double().unflatten(1, (-1, GROUP))
    scales = groups.abs().amax(-1, keepdim=True) / LARGEST_INT8
    scales = torch.where(scales < 2.0**-106, torch.inf, scales)
    return torch.nan_to_num((groups / scales).round() * scales).flatten(1)


def bound(x: Tensor, weights: Tensor) -> Tensor:
    """How far a product may be from the float64 one of the same quantised weights.

    Half a step of each activation, plus rounding in float32, for all terms in the same direction.
    """
    steps: Tensor = x.double().abs().unflatten(1, (-1, GROUP)).amax(-1) / LARGEST_INT8
    half_steps = (steps / 2 + 2.0**-100).repeat_interleave(GROUP, 1) + x.double().abs() * 1e-5
    return half_steps @ weights.double().abs().T + 1e-37


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor | None]:
    """Activations [rows, inputs], weights [outputs, inputs], each with a trouble, and a bias."""
    rows = draw(st.integers(1, 65))
    outputs = draw(st.integers(1, 100))
    inputs = GROUP * draw(st.integers(1, 9))
    seed = draw(st.integers(0, 1000))
    x, weights = random(rows, inputs, seed=seed), random(outputs, inputs, seed=seed + 1)
    for matrix, largest in ((x, 1e30), (weights, 1e4)):
        kind = draw(st.sampled_from(["plain", "zero row", "denormal", "outlier", "tiny", "huge"]))
        row = draw(st.integers(0, matrix.shape[0] - 1))
        if kind == "zero row":
            matrix[row] = 0
        elif kind == "denormal":
            matrix[row] *= 1e-40
        elif kind == "outlier":
            matrix[row, draw(st.integers(0, inputs - 1))] = largest
        elif kind == "tiny":
            matrix[row] *= 1e-7
        elif kind == "huge":
            matrix[row] *= largest / 10
    return x, weights, random(outputs, seed=seed + 2) if draw(st.booleans()) else None


@given(problem=problems(), bits=st.sampled_from(BITS))
def test_products_are_those_of_the_quantised_weights(
    kernels: Kernels, problem: tuple[Tensor, Tensor, Tensor | None], bits: Bits
) -> None:
    x, weights, bias = problem
    weight = packed(kernels, weights, bits)
    meant = x.double() @ unpacked(weight).double().T
    if bias is not None:
        meant += bias
    error = (linear(kernels, x, weight, bias).double() - meant).abs()
    rounding = 1e-6 * (meant.abs() + (0 if bias is None else bias.abs()))
    assert (error <= bound(x, unpacked(weight)) + rounding).all()


@given(problem=problems(), bits=st.sampled_from(FLOATS))
def test_products_of_weights_as_they_are_lose_nothing_but_rounding(
    kernels: Kernels, problem: tuple[Tensor, Tensor, Tensor | None], bits: Bits
) -> None:
    x, weights, bias = problem
    weight = packed(kernels, weights, bits)
    kept = weights
    if bits == 16:
        x, kept = x.bfloat16().float(), weights.bfloat16().float()
    assert torch.equal(unpacked(weight), kept)
    added = torch.zeros(weights.shape[0]) if bias is None else bias
    meant = x.double() @ kept.double().T + added
    terms = x.double().abs() @ kept.double().abs().T + added.abs()
    error = (linear(kernels, x, weight, bias).double() - meant).abs()
    zeroed = 0 if bits == 32 else taken_for_zero(x, kept)
    assert (error <= (x.shape[1] + 2) * 2.0**-23 * terms + zeroed + 1e-37).all()


def taken_for_zero(x: Tensor, weights: Tensor) -> Tensor:
    """How much of each sum an instruction leaves out that takes what is not normal for zero."""
    largest = [each.abs().double().sum(1) for each in (x, weights)]
    return torch.finfo(torch.float32).tiny * (largest[0][:, None] + largest[1] + x.shape[1])


@given(problem=problems())
def test_bfloat16_products_have_the_bits_that_the_same_numbers_have_in_float32(
    kernels: Kernels, problem: tuple[Tensor, Tensor, Tensor | None]
) -> None:
    x, weights, bias = problem
    result = linear(kernels, x, packed(kernels, weights, 16), bias)
    x, weights = x.bfloat16().float(), weights.bfloat16().float()
    if kernels.variant == "amx":
        exact = in_tiles(x, weights) + (0 if bias is None else bias)
    else:
        exact = linear(kernels, x, packed(kernels, weights, 32), bias)
    assert ((result - exact).abs() <= taken_for_zero(x, weights)).all()


def in_tiles(x: Tensor, weights: Tensor) -> Tensor:
    """Products added up as tiles of bfloat16 do: within a group, those of even inputs and those of
    odd inputs; then both, and then the groups. Source: Intel's manual, TDPBF16PS."""
    total = torch.zeros(len(x), len(weights))
    for inputs, others in zip(x.split(GROUP, 1), weights.split(GROUP, 1), strict=True):
        sums = torch.zeros(2, len(x), len(weights))
        for first in range(0, GROUP, 2):
            for place in range(2):
                sums[place] += torch.outer(inputs[:, first + place], others[:, first + place])
        total += sums[0] + sums[1]
    return total


@given(problem=problems())
def test_int8_weights_are_within_half_a_step(
    kernels: Kernels, problem: tuple[Tensor, Tensor, Tensor | None]
) -> None:
    _, weights, _ = problem
    error = (unpacked(packed(kernels, weights, 8)) - weights).abs().unflatten(1, (-1, GROUP))
    steps = weights.abs().unflatten(1, (-1, GROUP)).amax(-1, keepdim=True) / LARGEST_INT8
    smallest_half = 2.0**-24  # a scale is a half: its own rounding adds to a step
    assert (error <= steps * 0.501 + smallest_half).all()


@pytest.mark.parametrize("bits", BITS)
def test_activations_are_rounded_to_the_nearest_of_8_bits(kernels: Kernels, bits: Bits) -> None:
    x, weight = random(9, 320), packed(kernels, random(64, 320, seed=1), bits)
    meant = rounded(x) @ unpacked(weight).double().T
    torch.testing.assert_close(linear(kernels, x, weight).double(), meant, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("bits", BITS)
def test_error_against_unquantised_weights_is_as_small_as_promised(
    kernels: Kernels, bits: Bits
) -> None:
    weights = random(160, 1024)
    error = unpacked(packed(kernels, weights, bits)) - weights
    assert error.norm() / weights.norm() < WEIGHT_ERRORS[bits]


def test_int4_scales_are_better_than_those_of_the_largest_weight(kernels: Kernels) -> None:
    """Errors count by the weights that they are of."""
    weights = random(64, 512)
    groups = weights.unflatten(1, (-1, GROUP))
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scales = largest / -8
    plain = ((groups / scales).round().clamp(-8, 7) * scales).flatten(1)
    searched = unpacked(packed(kernels, weights, 4))
    errors = [((each - weights) * weights).norm() for each in (searched, plain)]
    assert errors[0] < 0.95 * errors[1]


@pytest.mark.parametrize("bits", FORMS)
def test_a_row_is_the_same_in_any_company_and_on_any_number_of_threads(
    kernels: Kernels, bits: Bits
) -> None:
    weight = packed(kernels, random(130, 1120), bits)
    bias, x = random(130, seed=1), random(65, 1120, seed=2)
    x[7] *= 1e6
    alone = torch.cat([linear(kernels, row, weight, bias) for row in x.split(1)])
    single = Kernels(1, kernels.variant)
    for rows in COUNTS:
        assert torch.equal(linear(kernels, x[-rows:], weight, bias), alone[-rows:])
        assert torch.equal(linear(single, x[:rows], weight, bias), alone[:rows])


@pytest.mark.parametrize("bits", FORMS)
def test_variants_agree(bits: Bits) -> None:
    """All sums of a group are exact, and products of bfloat16; only without fused multiply-add, and
    in tiles of bfloat16, another total may differ."""
    x, weights = random(150, 1120), random(70, 1120, seed=1)
    variants = [Kernels(1, name) for name in supported_variants()]
    packs = [packed(each, weights, bits) for each in variants]
    assert all(np.array_equal(first.blocks, second.blocks) for first, second in pairwise(packs))
    results = [linear(each, x, packs[0]) for each in variants]
    alone = "amx" if bits == 16 else "portable"
    same = [
        each for each, kernels in zip(results, variants, strict=True) if kernels.variant != alone
    ]
    assert all(torch.equal(each, same[0]) for each in same)
    for result in results:
        torch.testing.assert_close(result, same[0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", FORMS)
def test_half_precision_weights_are_read_as_they_are(
    kernels: Kernels, bits: Bits, dtype: torch.dtype
) -> None:
    weights = random(40, 96).to(dtype)
    weights[3, :8] = torch.tensor([0.0, -0.0, 6e-8, -6e-8, 1e-5, 3e-5, 65504.0, -1.0]).to(dtype)
    as_floats = packed(kernels, weights.float(), bits)
    assert np.array_equal(packed(kernels, weights, bits).blocks, as_floats.blocks)


@pytest.mark.parametrize("bits", FORMS)
def test_a_matrix_may_be_packed_in_parts(kernels: Kernels, bits: Bits) -> None:
    weights = random(75, 64)
    whole, parts = packed(kernels, weights, bits), PackedWeight.empty(bits, 75, 64)
    for first, end in ((40, 75), (0, 7), (7, 40)):
        kernels.pack(weights[first:end].numpy(), parts, first)
    assert np.array_equal(parts.blocks, whole.blocks)


@pytest.mark.parametrize(
    ("bits", "value"),
    [
        *product(BITS, [torch.nan, torch.inf, -torch.inf, 1e9]),
        *product(FLOATS, [torch.nan, torch.inf]),
    ],
)
def test_a_weight_that_is_not_finite_or_that_no_scale_holds_is_refused(
    kernels: Kernels, bits: Bits, value: float
) -> None:
    weights = random(40, 64)
    weights[33, 40] = value
    with pytest.raises(UnusableWeight, match="row 33"):
        packed(kernels, weights, bits)


def test_inputs_that_do_not_fill_a_group_are_refused() -> None:
    with pytest.raises(UnusableWeight, match="33 inputs are no multiple of 32"):
        PackedWeight.empty(8, 4, 33)


@pytest.mark.parametrize("bits", FORMS)
@pytest.mark.parametrize("value", [0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0x7F800000])
def test_an_activation_that_is_not_finite_spoils_its_own_row_only(
    kernels: Kernels, value: int, bits: Bits
) -> None:
    """`value`: the bits of NaNs, of which rounding must not make numbers, and of infinity."""
    weight, x = packed(kernels, random(50, 64), bits), random(6, 64, seed=1)
    clean = linear(kernels, x, weight)
    x.view(torch.int32)[2, 40] = value
    result = linear(kernels, x, weight)
    assert not result[2].isfinite().any()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(result[others], clean[others])


def test_no_rows_are_no_trouble(kernels: Kernels) -> None:
    weight = packed(kernels, random(50, 64), 8)
    assert linear(kernels, torch.empty(0, 64), weight).shape == (0, 50)
