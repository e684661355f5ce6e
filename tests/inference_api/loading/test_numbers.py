"""Every bit pattern of the narrow floats becomes the float32 that torch makes of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inference_api.loading.numbers import DTYPES, Numbers

NARROW = {"F8_E4M3": torch.float8_e4m3fn, "BF16": torch.bfloat16, "F16": torch.float16}


def all_patterns(kind: str) -> NDArray[np.generic]:
    dtype = DTYPES[kind]
    bits = np.arange(2 ** (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}")
    return bits.view(dtype)


@pytest.mark.parametrize("kind", NARROW)
def test_widening_is_exact(kind: str) -> None:
    data = all_patterns(kind)
    expected = torch.from_numpy(data).view(NARROW[kind]).float().numpy()
    found = Numbers(kind, data).floats()
    is_none = np.isnan(expected)
    assert (np.isnan(found) == is_none).all()
    assert found[~is_none].tobytes() == expected[~is_none].tobytes()


def test_float32_is_not_copied() -> None:
    data = np.ones((2, 3), np.float32)
    assert Numbers("F32", data).floats() is data


def test_rows_may_be_cut_transposed_and_reordered_before_they_are_widened() -> None:
    whole = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    data = whole.view(torch.uint16).numpy()
    changes: list[Callable[[Any], Any]] = [
        lambda x: x[1::2],
        lambda x: x.T,
        lambda x: x[[3, 0, 5]],
    ]
    for change in changes:
        found = Numbers("BF16", change(data)).floats()
        assert np.array_equal(found, change(whole.float().numpy()))
