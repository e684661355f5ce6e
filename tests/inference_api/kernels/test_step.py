"""A whole step by the kernels against the same layers op by op, and each token against itself."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from inference_api.engine.cpu.decoder import KernelDecoder
from inference_api.engine.cuda.decoder import Decoder
from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.engine.cuda.parameters import Linear, TorchParameters
from inference_api.engine.cuda.rope import Rope
from inference_api.engine.cuda.torch_ops import TorchOps
from inference_api.kernels.interface import Floats
from inference_api.kernels.library import Kernels, PackedWeight
from inference_api.kernels.packing import CACHE_DTYPES, FLOAT_BITS, GROUP, MAX_HEAD_DIM, Bits
from inference_api.loading import checkpoint
from inference_api.loading.config import ModelConfig
from inference_api.loading.layout import EMBEDDING, HEAD, K_B, KV_B, V_B
from inference_api.loading.weights import Parameters
from inference_api.runner import RowStep
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine import tiny_models
from tests.inference_api.engine.caches import make_cache
from tests.inference_api.engine.steps import ANY_DRAW, decode, prefill
from tests.inference_api.engine.tiny_models import CONTEXT, GATED, MODELS, VOCAB_SIZE
from tests.inference_api.kernels.groups import grouped, of_groups, rotation
from tests.inference_api.parameters import packed_parameters

ROWS = 6
CPU = torch.device("cpu")
EXTRA = {
    "llama-widest-heads": ("Llama", {**GATED, "head_dim": MAX_HEAD_DIM}),
    **{f"llama-{act}": ("Llama", {**GATED, "hidden_act": act}) for act in ("gelu", "relu")},
}
NAMES = [*MODELS, *EXTRA]
# Between them they have every norm, activation and kind of MLP, and biases.
OF_ALL_KINDS = (
    *("qwen3", "llama-wide-heads", "falcon-sequential", "llama-relu"),
    *("qwen3-moe", "glm4-moe", "deepseek-v2"),
)

Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(tiny_model: Tiny) -> Iterator[Folder]:
    with pytest.MonkeyPatch.context() as patch:
        for name, model in EXTRA.items():
            patch.setitem(tiny_models.MODELS, name, model)
        yield lambda name: tiny_model(name)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """Weights multiplied by the kernels, apart from the rest of a step."""

    kernels: Kernels
    weight: PackedWeight
    bias: Floats | None

    def __call__(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.kernels.linear(x.numpy(), self.weight, self.bias))


@dataclass(frozen=True, slots=True)
class OpByOp(TorchParameters):
    """The kernels' parameters, for torch to do all but the products."""

    packed: Parameters
    config: ModelConfig

    @classmethod
    def of(cls, packed: Parameters, config: ModelConfig) -> "OpByOp":
        embedding = torch.from_numpy(packed.packed[EMBEDDING].unpack())
        vectors = {name: torch.from_numpy(each) for name, each in packed.tensors.items()}
        return cls(vectors | {EMBEDDING: embedding}, packed, config)

    def linear(self, name: str, *, after: str = "") -> Linear:
        weight = name if name == HEAD else f"{name}.weight"
        if KV_B in weight:
            return partial(torch.nn.functional.linear, weight=self._keys_and_values(weight))
        own_bias = self.packed.tensors.get(f"{name}.bias")
        return PackedLinear(self.packed.packing.kernels, self.packed.packed[weight], own_bias)

    def _keys_and_values(self, weight: str) -> Tensor:
        """What the kernels' two matrices are made of: see `latent_forms`."""
        keys, values = (
            torch.from_numpy(self.packed.packed[weight.replace(KV_B, name)].unpack())
            for name in (K_B, V_B)
        )
        config, rank = self.config, values.shape[-1]
        of_keys = keys.view(config.num_heads, rank, -1).transpose(1, 2)
        of_values = values.view(config.num_heads, -1, rank)
        unturned = config.head_dim - config.rotary_dim
        both = (of_keys[:, :unturned], of_values[:, : config.value_dim])
        return torch.cat(both, 1).flatten(0, 1)

    def linears(self, name: str, count: int) -> list[Linear]:
        packed, kernels = self.packed.packed[f"{name}.weight"], self.packed.packing.kernels
        stacked, size = self.packed.tensors.get(f"{name}.bias"), packed.outputs // count
        return [
            PackedLinear(
                kernels,
                packed.part(first, first + size),
                None if stacked is None else stacked[first : first + size],
            )
            for first in range(0, packed.outputs, size)
        ]


def loaded(
    folder: Path,
    kernels: Kernels,
    bits: Bits = 8,
    dtype: str = "float32",
    context: int = CONTEXT,
) -> tuple[KernelDecoder, Decoder]:
    """The model with a cache of `dtype`, and with a float32 one op by op."""
    config = checkpoint.load_config(folder)
    with torch.inference_mode():
        parameters = packed_parameters(folder, bits, kernels=kernels)
        plain = TorchCache(config, ROWS, context, CPU, torch.float32)
        ops = TorchOps(config, plain, Rope(config, context, CPU, torch.float32))
        cache = make_cache(config, ROWS, context, dtype)
        return (
            KernelDecoder(config, parameters, cache, context),
            Decoder(config, OpByOp.of(parameters, config), plain, ops, POSITIONS - 1),
        )


def random_tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB_SIZE, (count,), generator=generator).tolist()


POSITIONS = 12
TEXTS = [random_tokens(POSITIONS, seed) for seed in range(4)]


@torch.inference_mode()
def every_position(decoder: KernelDecoder, texts: Sequence[Sequence[int]]) -> Tensor:
    """Logits [position, row, vocab], token by token, one row for each of `texts`."""
    rows = range(len(texts))
    return torch.stack(
        [
            decode(decoder, [text[position] for text in texts], rows, [position] * len(texts))
            for position in range(len(texts[0]))
        ]
    )


@torch.inference_mode()
def at_once(decoder: Decoder, texts: Sequence[Sequence[int]]) -> Tensor:
    """The same, of whole texts in one step."""
    steps = [RowStep(row, 0, text, (ANY_DRAW,) * len(text)) for row, text in enumerate(texts)]
    by_row: Tensor = decoder.forward(steps).logits.unflatten(0, (len(texts), -1))
    return by_row.transpose(0, 1)


def is_close(actual: Tensor, expected: Tensor, typical: float, worst: float) -> bool:
    """Of positions' relative errors. Rounding moves a few activations to the next of their 255
    values, which is the worst case and rare."""
    errors = (actual - expected).norm(dim=-1) / expected.norm(dim=-1)
    return bool(errors.median() < typical and errors.max() < worst)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_every_family_equals_its_layers_op_by_op(folder: Folder, name: str) -> None:
    fused, plain = loaded(folder(name), Kernels(2))
    within = bounds(fused, 2e-6, 0.05)
    assert is_close(every_position(fused, TEXTS), at_once(plain, TEXTS), *within)


def bounds(fused: KernelDecoder, typical: float, worst: float) -> tuple[float, float]:
    """Where activations are rounded, the kernels, which read latents as they are, round queries and
    sums; torch rounds what keys and values are made of. Then other experts may be chosen."""
    is_other = fused._config.latent is not None and fused._bits != FLOAT_BITS["float32"]
    return (0.05, 0.5) if is_other else (typical, worst)


@pytest.mark.parametrize(("bits", "typical", "worst"), [(32, 2e-6, 1e-5), (16, 2e-3, 0.02)])
@pytest.mark.parametrize("name", OF_ALL_KINDS)
def test_so_it_does_with_weights_as_they_are(
    folder: Folder, name: str, bits: Bits, typical: float, worst: float
) -> None:
    """Beside float32 activations are not rounded, so that even the worst position is close. Every
    family's logits are compared with those of transformers in engine/test_decoder.py."""
    fused, plain = loaded(folder(name), Kernels(2), bits)
    within = bounds(fused, typical, worst)
    assert is_close(every_position(fused, TEXTS), at_once(plain, TEXTS), *within)


@pytest.mark.parametrize("name", OF_ALL_KINDS)
def test_so_it_does_with_every_variant(folder: Folder, kernels: Kernels, name: str) -> None:
    fused, plain = loaded(folder(name), kernels)
    within = bounds(fused, 2e-6, 0.05)
    assert is_close(every_position(fused, TEXTS), at_once(plain, TEXTS), *within)


@pytest.mark.parametrize(("dtype", "typical"), [("float16", 0.025), ("int8", 0.04)])
@pytest.mark.parametrize("name", ["llama", "llama-wide-heads"])
def test_a_smaller_cache_costs_little(
    folder: Folder, kernels: Kernels, name: str, dtype: str, typical: float
) -> None:
    smaller, plain = loaded(folder(name), kernels, dtype=dtype)
    assert is_close(every_position(smaller, TEXTS), at_once(plain, TEXTS), typical, 0.1)


@torch.inference_mode()
def test_a_cache_of_bytes_is_the_nearest_to_rotated_floats(
    folder: Folder, kernels: Kernels
) -> None:
    text, cached = random_tokens(20), {}
    for dtype in ("float32", "int8"):
        decoder, _ = loaded(folder("llama"), kernels, 32, dtype)
        prefill(decoder, 1, 0, text)
        page = decoder._cache.tables[0, 1, 0]
        cached[dtype] = decoder._cache.by_group[0][page, 0, :, :, :20]
    floats, packed = cached.values()
    head_dim = floats.shape[-1]
    rotated = floats @ rotation(head_dim).numpy()
    scales = np.ascontiguousarray(packed[..., head_dim:]).view(np.float32)
    np.testing.assert_allclose(scales, np.abs(rotated).max(-1, keepdims=True) / 127, rtol=1e-5)
    errors = np.abs(packed[..., :head_dim] * scales - rotated)
    assert (errors <= scales * 0.5001).all()


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "llama-wide-heads"])
def test_a_cache_of_groups_is_the_nearest_to_rotated_floats(
    folder: Folder, kernels: Kernels, name: str
) -> None:
    """The last group may be filled up."""
    text, cached = random_tokens(20), {}
    for dtype in ("float32", "int4"):
        decoder, _ = loaded(folder(name), kernels, 32, dtype)
        prefill(decoder, 1, 0, text)
        page = decoder._cache.tables[0, 1, 0]
        cached[dtype] = decoder._cache.by_group[0][page, 0, :, :, :20]
    floats, packed = map(torch.from_numpy, cached.values())
    head_dim = floats.shape[-1]
    rotated = floats @ rotation(head_dim)
    steps = grouped(rotated).abs().amax(-1, keepdim=True).expand(-1, -1, -1, -1, GROUP) / 8
    found = of_groups(packed, head_dim).float() @ rotation(head_dim)
    # Half a step, or a whole one where the farthest number but one has the other sign.
    errors = (found - rotated).abs() / steps.flatten(-2)[..., :head_dim]
    assert errors.max() < 1.01
    assert (errors < 0.51).float().mean() > 0.95


@torch.inference_mode()
@pytest.mark.parametrize(("bits", "dtype"), [*zip((32, 16, 8, 4), CACHE_DTYPES, strict=True)])
def test_a_token_is_the_same_in_any_company_however_its_prompt_is_cut(
    folder: Folder, kernels: Kernels, bits: Bits, dtype: str
) -> None:
    """With every form of weights, and every cache: no product meets what is cached."""
    alone, _ = loaded(folder("llama"), Kernels(1, kernels.variant), bits, dtype)
    decoder, _ = loaded(folder("llama"), kernels, bits, dtype)
    assert_same_in_any_company(alone, decoder)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "bits"),
    [
        *(("gemma3-capped", 8), ("glm4", 4), ("olmo2", 8), ("phi3", 4), ("smollm3", 8)),
        *(("mistral-window", 4), ("llama-tied", 8), ("falcon-7b", 4), ("falcon-40b", 8)),
        *(("gpt-oss", 4), ("deepseek-v3", 8), ("deepseek-v3", 4), ("qwen3-moe", 8)),
        ("glm4-moe", 4),
    ],
)
def test_so_it_is_whatever_a_layer_is_made_of(folder: Folder, name: str, bits: Bits) -> None:
    alone, _ = loaded(folder(name), Kernels(1), bits, "float16")
    decoder, _ = loaded(folder(name), Kernels(2), bits, "float16")
    assert_same_in_any_company(alone, decoder)


def assert_same_in_any_company(alone: KernelDecoder, decoder: KernelDecoder) -> None:
    """Alone on one thread, and in one call of 700 tokens: more than the kernels take at once."""
    text = random_tokens(110)
    expected = every_position(alone, [text])[-1, 0]
    others = [(row, random_tokens(118, row)) for row in range(5)]
    for cuts in ([0, 110], [0, 1, 33, 34, 109, 110]):
        for start, end in pairwise(cuts):
            steps = [RowStep(row, 0, other) for row, other in others]
            own = RowStep(5, start, text[start:end], (ANY_DRAW,))
            logits = decoder.forward([*steps[:2], own, *steps[2:]]).logits
        assert np.array_equal(logits[0], expected)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("llama-wide-heads", dtype) for dtype in CACHE_DTYPES),
        *(("mistral-window", "int8"), ("deepseek-v2", "float16"), ("deepseek-v2", "int4")),
    ],
)
def test_a_tree_has_the_bits_of_its_branches(
    folder: Folder, kernels: Kernels, name: str, dtype: str
) -> None:
    """A random one, begun at several places in a block of keys; the second is cut into parts,
    because its company has more tokens than the kernels take at once."""
    decoder, _ = loaded(folder(name), kernels, 32, dtype)
    rng, size = random.Random(name), 40
    parents = [-1, *(rng.randrange(max(-1, i - 6), i) for i in range(1, size))]
    tokens, text = random_tokens(size, 1), random_tokens(CONTEXT, 2)
    company = [RowStep(row, 0, random_tokens(120, row)) for row in range(4)]
    for start, others in ((5, []), (30, company), (61, company[:1])):
        tree = RowStep(5, start, tokens, (ANY_DRAW,) * size, parents)
        prefill(decoder, 5, 0, text[:start])
        logits = decoder.forward([*others, tree]).logits.copy()
        prefill(decoder, 4, 0, text[:start])
        for node in range(0, size, 3):
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            alone = RowStep(4, start, [tokens[at] for at in path], (ANY_DRAW,))
            assert np.array_equal(decoder.forward([alone]).logits[0], logits[node])


@torch.inference_mode()
def test_outputs_are_those_of_the_last_tokens(folder: Folder, kernels: Kernels) -> None:
    decoder, _ = loaded(folder("llama-tied"), kernels, context=1024)
    text = random_tokens(600)

    def logits(row: int, num_draws: int) -> Floats:
        step = RowStep(row, 0, text, (ANY_DRAW,) * num_draws)
        return decoder.forward([step]).logits.copy()

    assert np.array_equal(logits(3, 2), logits(2, 600)[-2:])
    assert logits(4, 0).shape == (0, VOCAB_SIZE)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["float16", "int8", "int4"])
def test_a_value_too_large_for_half_precision_stays_finite(
    folder: Folder, kernels: Kernels, dtype: str
) -> None:
    decoder, _ = loaded(folder("qwen2"), kernels, dtype=dtype)
    for name, tensor in decoder._tensors.items():
        if name.endswith("qkv.bias"):
            tensor.fill(1e6)
    assert decode(decoder, [5], [0], [0]).isfinite().all()
