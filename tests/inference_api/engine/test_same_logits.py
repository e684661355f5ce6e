"""Models whose layers differ against transformers' own, and each row against itself."""

import random
from itertools import product

import numpy as np
import pytest

from inference_api.kernels.library import supported_variants
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.tiny_models import GEMMAS, HYBRIDS
from tests.inference_api.engine.whole_logits import (
    PROMPT,
    ROWS,
    expected_logits,
    logits_of,
    runner_of,
)

NAMES = [*HYBRIDS, *GEMMAS]
# Models that have between them every kind of layer.
OF_ALL_KINDS = (
    *("lfm2-moe", "qwen3.5-moe", "granite4-moe", "falcon-h1-norm", "kimi-linear"),
    *("gemma4-shared", "gemma4-moe", "gemma3n"),
)
BEST, *OTHERS = supported_variants()


@pytest.mark.parametrize(
    ("name", "variant"), [*product(NAMES, [BEST]), *product(OF_ALL_KINDS, OTHERS)]
)
def test_logits_equal_those_of_transformers(name: str, variant: str, tiny_model: Tiny) -> None:
    logits = logits_of(runner_of(tiny_model(name), variant=variant), row=1)
    np.testing.assert_allclose(logits, expected_logits(name), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_logits_are_the_same_bits_however_the_prompt_is_cut(
    name: str, quantization: str, tiny_model: Tiny
) -> None:
    runner = runner_of(tiny_model(name), quantization)
    whole = logits_of(runner, row=0)
    one_by_one = logits_of(runner, 0, range(1, len(PROMPT)))
    np.testing.assert_array_equal(one_by_one, whole)
    cuts = sorted(random.Random(name).sample(range(1, len(PROMPT)), k=5))
    np.testing.assert_array_equal(logits_of(runner, ROWS - 1, cuts), whole)
