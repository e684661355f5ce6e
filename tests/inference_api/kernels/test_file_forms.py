"""Types of GGUF files that stay as they are: numbers and products are those of the file."""

from hashlib import sha256

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference_api.kernels.library import (
    Kernels,
    PackedWeight,
    UnusableWeight,
    supported_variants,
)
from inference_api.kernels.packing import FILE_BITS, FILE_FORMS, LAYOUT_VERSION, SUPER_GROUP
from tests.inference_api.kernels.test_linear import bound, linear, random, unpacked
from tests.inference_api.superblocks import UNITS, drawn, numbers, packed

PACKED = {  # of each layout's version: files keep packed bytes
    (3, "Q4_1"): "862c73aa3aae60c0f8d99173adaeb9bbd568a341bbec21167307c621d4459880",
    (3, "Q5_0"): "5502bbd83f4f32efb48fc697c9eb6d96be6f79ca3e7e71dba15cf92a652b0c67",
    (3, "Q5_1"): "50d613986be210dd8b098b948172e091dcfc0844d26b4981c42f8ae5d3e971a4",
    (3, "IQ4_NL"): "07d8ef7237ca8123ecaf30d02bf09f7a476aa77d2e601cb2a60ac7d041a6c1d9",
    (3, "IQ4_XS"): "9918f0c729aa57fa6850cd7f2cc9cb1e2bdc318f52167a0b3dfdf40f4a564dbb",
    (3, "MXFP4"): "96eb24abca34a66f87fc2c7673253c0c41cee28add444d2f6e1c865a3ab0e47b",
    (3, "Q2_K"): "20739b191b3d2fdf764d7433069e7692b13047764a1a0f457054528623854c71",
    (3, "Q3_K"): "51ec6ba3b62b1eb0b0bc3a74d0636e5725c118b1c014aa56ebcaf350347840ba",
    (3, "Q4_K"): "8717b18529f22b65d6dbda6130c714f8e66b27ec611b61fe437e57035606fb7e",
    (3, "Q5_K"): "6f999d6b794f9e346d16edce22f2924de971959b4c064899927ac818142c6830",
    (3, "Q6_K"): "11ce6c978c5ce505fd93b73e3ebe89a3e53aa00ecd6d7eb79c63968828da243e",
    (3, "IQ1_S"): "89ccb9be2148866e9b63a3281d0cb1d4377623fdbe289e79fa001a10e99a3c4a",
    (3, "IQ1_M"): "d6ddd1c7aa7987f632fdf68e3b7d13385bc117bc71536c6dedb17036ab4cef76",
    (3, "IQ2_XXS"): "9530e309ae380e92d4ffb6dfa65659c0782c426fe1b3141eabff4908fa09adf4",
    (3, "IQ2_XS"): "0cbfb74be0a074032014b39a2b91369364f9e3f7ed9d40142e4b7ac4c6648d10",
    (3, "IQ2_S"): "5582f1be616f19d2d36c8d95cf4ecc393c764aaf2f30cfff661c34d17dbf2ce5",
    (3, "IQ3_XXS"): "eab241cfaa065d327c035a078802d42ec0bf0f8ba82342d899210bb839674c47",
    (3, "IQ3_S"): "4867d9df343a63fbe517095e0dd9c389bc0307fe868ef19dd7a67a2e511c69ce",
    (3, "NVFP4"): "9c25eaa5bfcbf8a2f480cbb2fdb484143523221526f124d5558ebf9b85c696b3",
}


@pytest.mark.parametrize("kind", FILE_BITS)
def test_weights_are_the_numbers_of_the_file(kind: str) -> None:
    data = drawn(kind, 300, 3 * SUPER_GROUP)
    first = 8 if kind == "NVFP4" else 5
    weight = packed(kind, data, first_output=first)
    assert np.array_equal(weight.unpack()[first:], numbers(kind, data))


@pytest.mark.parametrize("kind", FILE_BITS)
def test_weights_take_the_bytes_of_the_file(kind: str) -> None:
    data = drawn(kind, 64, 2 * SUPER_GROUP)
    assert packed(kind, data).blocks.nbytes == data.nbytes


@pytest.mark.parametrize("kind", FILE_BITS)
def test_packed_bytes_are_those_of_the_version(kind: str) -> None:
    data = drawn(kind, 70, 2 * SUPER_GROUP)
    found = sha256(packed(kind, data).blocks.tobytes()).hexdigest()
    assert found == PACKED[LAYOUT_VERSION, kind]


@given(
    kind=st.sampled_from(list(FILE_BITS)),
    rows=st.integers(1, 65),
    outputs=st.integers(1, 100),
    blocks=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_products_are_those_of_the_numbers(
    kernels: Kernels, kind: str, rows: int, outputs: int, blocks: int, seed: int
) -> None:
    weight = packed(kind, drawn(kind, outputs, blocks * SUPER_GROUP, seed))
    x, bias = random(rows, weight.inputs, seed=seed), random(outputs, seed=seed + 1)
    weights = unpacked(weight)
    meant = x.double() @ weights.double().T + bias
    error = (linear(kernels, x, weight, bias).double() - meant).abs()
    assert (error <= bound(x, weights) + 1e-5 * (meant.abs() + bias.abs() + 1)).all()


@pytest.mark.parametrize("kind", FILE_BITS)
def test_a_row_is_the_same_in_any_company_and_on_any_number_of_threads(
    kernels: Kernels, kind: str
) -> None:
    weight = packed(kind, drawn(kind, 130, 2 * SUPER_GROUP))
    x = random(41, weight.inputs)
    x[7] *= 1e6
    alone = torch.cat([linear(kernels, row, weight) for row in x.split(1)])
    single = Kernels(1, kernels.variant)
    for rows in (*range(1, 14), 24, 25, 41):  # tiles of every size, alone and beside others
        assert torch.equal(linear(kernels, x[-rows:], weight), alone[-rows:])
        assert torch.equal(linear(single, x[:rows], weight), alone[:rows])


@pytest.mark.parametrize("kind", FILE_BITS)
def test_variants_agree(kind: str) -> None:
    weight = packed(kind, drawn(kind, 70, 3 * SUPER_GROUP))
    x = random(70, weight.inputs)
    variants = [Kernels(1, name) for name in supported_variants()]
    results = [linear(each, x, weight) for each in variants]
    for variant, result in zip(variants, results, strict=True):
        if variant.variant == "portable":  # without fused multiply-add
            torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-4)
        else:
            assert torch.equal(result, results[0])


@pytest.mark.parametrize("kind", FILE_BITS)
def test_an_activation_that_is_not_finite_spoils_its_own_row_only(
    kernels: Kernels, kind: str
) -> None:
    weight = packed(kind, drawn(kind, 40, SUPER_GROUP))
    x = random(6, SUPER_GROUP)
    clean = linear(kernels, x, weight)
    x[2, 40] = torch.nan
    result = linear(kernels, x, weight)
    assert result[2].isnan().all()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(result[others], clean[others])


@pytest.mark.parametrize("kind", FILE_BITS)
def test_a_scale_that_is_not_finite_is_refused(kind: str) -> None:
    data = drawn(kind, 40, SUPER_GROUP)
    data[33, UNITS[kind]] = 0xFF
    with pytest.raises(UnusableWeight, match=r"not finite|below zero"):
        packed(kind, data)


@pytest.mark.parametrize("kind", [kind for kind, form in FILE_FORMS.items() if form.inputs > 32])
def test_inputs_that_do_not_fill_a_block_are_refused(kind: str) -> None:
    with pytest.raises(UnusableWeight, match=r"96 inputs are no multiple of (64|256)"):
        PackedWeight.empty(FILE_BITS[kind], 4, 96)
