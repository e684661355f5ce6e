"""The kernels' guesses, and torch's, are those of the heads' formula."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor

from inference_api.engine.cpu.medusa import MedusaHeads
from inference_api.engine.cuda.medusa import TorchMedusaHeads
from inference_api.engine.medusa_tree import DEFAULT_PATHS, default_paths
from inference_api.kernels.interface import Floats
from inference_api.kernels.library import (
    Kernels,
    PackedWeight,
    supported_variants,
)
from inference_api.kernels.packing import BITS
from inference_api.loading.checkpoint import load_config
from inference_api.loading.config import ModelConfig
from inference_api.loading.heads import MAX_HEADS, MedusaFile
from inference_api.loading.layout import HEAD
from inference_api.loading.weights import Parameters
from inference_api.settings import EMBEDDED_MODEL
from tests.inference_api.parameters import packed_parameters, torch_parameters

BEST, *OTHERS = supported_variants()

CONFIG = load_config(EMBEDDED_MODEL)
NUM_HEADS = 3
ROUNDING = 0.025  # of a probability: activations have 8 bits


def file_of(num_layers: int, vocab_size: int, token_ids: Sequence[int] | None) -> MedusaFile:
    """Random heads; 0 tokens: the model's own output head."""
    generator = torch.Generator().manual_seed(num_layers + vocab_size)
    width = CONFIG.hidden_size

    def random(*shape: int) -> Floats:
        made: Floats = (0.05 * torch.randn(*shape, generator=generator)).numpy()
        return made

    return MedusaFile(
        [[random(width, width) for _ in range(num_layers)] for _ in range(NUM_HEADS)],
        [[random(width) for _ in range(num_layers)] for _ in range(NUM_HEADS)],
        [random(vocab_size, width) for _ in range(NUM_HEADS)] if vocab_size else None,
        None if token_ids is None else np.array(token_ids),
        paths=(),
        tokenizer_sha256=None,
    )


@cache
def packed_by(variant: str, bits: str) -> tuple[Kernels, Parameters]:
    """The embedded model, and what has packed it."""
    kernels = Kernels(2, variant)
    return kernels, packed_parameters(EMBEDDED_MODEL, BITS[bits], kernels=kernels)


def rounded(kernels: Kernels | None, weights: Floats, bits: str) -> Tensor:
    """What is left of weights once they are packed."""
    if kernels is None:
        return torch.from_numpy(weights)
    packed = PackedWeight.empty(BITS[bits], *weights.shape)
    kernels.pack(weights, packed)
    return torch.from_numpy(packed.unpack())


def expected(
    kernels: Kernels | None, file: MedusaFile, own_head: Floats, hidden: Tensor, config: ModelConfig
) -> Tensor:
    """Probabilities [rows, heads, tokens], of the tokens that are guessed among, by packed weights:
    layers of 8 bits, outputs of 4 or the model's own, whole head as it is."""
    chosen = slice(None) if file.token_ids is None else file.token_ids
    of_heads = []
    for head, (weights, biases) in enumerate(zip(file.weights, file.biases, strict=True)):
        state = hidden
        for weight, bias in zip(weights, biases, strict=True):
            state = state + torch.nn.functional.silu(
                state @ rounded(kernels, weight, "int8").T + torch.from_numpy(bias)
            )
        output = (own_head if file.outputs is None else file.outputs[head])[chosen]
        is_own = file.outputs is None and file.token_ids is None
        left = rounded(None if is_own else kernels, output, "int4")
        logits = state @ left.T / config.logits_divisor
        if (softcap := config.logits_softcap) is not None:
            logits = softcap * torch.tanh(logits / softcap)
        of_heads.append(logits.softmax(-1))
    return torch.stack(of_heads, 1)


Case = tuple[int, int, Sequence[int] | None, ModelConfig]
CASES: list[Case] = [
    (1, 0, None, CONFIG),
    (2, 0, None, replace(CONFIG, logits_divisor=0.5, logits_softcap=2.0)),
    (1, 70, None, CONFIG),
    (2, 70, range(3, 60, 2), replace(CONFIG, logits_softcap=0.5)),
    (1, 0, range(5, 500, 7), CONFIG),
]


@pytest.mark.parametrize(
    ("case", "bits", "variant"),
    [
        *product(CASES, ["int8"], [BEST]),
        (CASES[0], "int4", BEST),
        *product([CASES[1], CASES[3]], ["int8"], OTHERS),  # which multiply, and no more
    ],
)
def test_guesses_are_those_of_the_formula(case: Case, bits: str, variant: str) -> None:
    num_layers, vocab_size, token_ids, config = case
    torch.manual_seed(1)
    kernels, parameters = packed_by(variant, bits)
    file = file_of(num_layers, vocab_size, token_ids)
    heads = MedusaHeads(file, config, parameters)
    own_head = parameters.packed[HEAD].unpack()
    for num_rows in (1, 8, 33):
        hidden = torch.randn(num_rows, CONFIG.hidden_size)
        guesses = heads.guess([*hidden.numpy()])
        probabilities = expected(kernels, file, own_head, hidden, config)
        best = probabilities.topk(guesses.token_ids.shape[2]).values.numpy()
        places = guesses.token_ids
        if file.token_ids is not None:
            places = np.searchsorted(file.token_ids, places)
            assert (file.token_ids[places] == guesses.token_ids).all()
        own = np.take_along_axis(probabilities.numpy(), places, axis=2)
        assert np.abs(guesses.probabilities - own).max() < ROUNDING
        assert np.abs(best - own).max() < ROUNDING


@pytest.mark.parametrize(("num_layers", "vocab_size", "token_ids", "config"), CASES)
def test_guesses_by_torch_are_those_of_the_formula(
    num_layers: int,
    vocab_size: int,
    token_ids: Sequence[int] | None,
    config: ModelConfig,
    device: str,
) -> None:
    parameters = torch_parameters(EMBEDDED_MODEL, device=device)
    file = file_of(num_layers, vocab_size, token_ids)
    heads = TorchMedusaHeads(file, config, parameters)
    own_head = parameters.tensors[HEAD].cpu().numpy()
    for num_rows in (1, 8, 33):
        hidden = torch.randn(num_rows, CONFIG.hidden_size)
        guesses = heads.guess([*hidden.numpy()])
        best = expected(None, file, own_head, hidden, config).topk(guesses.token_ids.shape[2])
        chosen = best.indices.numpy()
        if file.token_ids is not None:
            chosen = file.token_ids[chosen]
        assert (guesses.token_ids == chosen).all()
        assert np.abs(guesses.probabilities - best.values.numpy()).max() < 1e-5


@pytest.mark.parametrize("num_heads", range(1, MAX_HEADS + 1))
def test_default_tree_is_closed_and_bounded(num_heads: int) -> None:
    paths = default_paths(num_heads)
    assert len(set(paths)) == len(paths) <= DEFAULT_PATHS
    assert all(len(path) <= num_heads for path in paths)
    for at, path in enumerate(paths):
        assert len(path) == 1 or path[:-1] in paths[:at]
    assert all(len(first) <= len(second) for first, second in pairwise(paths))
