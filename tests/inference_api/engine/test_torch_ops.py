"""Torch's operations against float64."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from inference_api.engine.cuda.inputs import absent, prompt_inputs, token_inputs
from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.engine.cuda.ops import PROMPT_LINES, Affine, LayerHeads
from inference_api.engine.cuda.rope import Rope
from inference_api.engine.cuda.torch_ops import TorchOps
from inference_api.loading.config import ModelConfig, RopeConfig, SwiGluConfig
from inference_api.loading.families.read import read_config
from inference_api.runner import MAX_TREE_TOKENS, Draw, RowStep
from tests.inference_api.engine.steps import ANY_DRAW

CONFIG = read_config(
    {
        "model_type": "gpt_oss",
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_local_experts": 4,
        "sliding_window": 5,
    }
)
ROWS, CONTEXT, LENGTHS = 4, 90, (32, 96)
CPU = torch.device("cpu")
# LayerHeads by their size, how many of keys, and queries for each.
SHAPES = ((64, 2, 1), (64, 1, 16), (80, 3, 2), (128, 1, 8), (256, 1, 3), (512, 1, 4))
SHIFTS = (None, -30.0, 0.0, 30.0)  # of sinks
# Each shape with a window and with none, each of these with all shifts.
shapes_layers_and_shifts = pytest.mark.parametrize(
    ("shape", "layer", "shift"),
    [
        (shape, layer, SHIFTS[(number + 2 * layer) % len(SHIFTS)])
        for number, shape in enumerate(SHAPES)
        for layer in range(2)
    ],
    ids=str,
)


class Made(NamedTuple):
    """Operations over a cache of random keys and values."""

    config: ModelConfig
    cache: TorchCache
    ops: TorchOps


def made(shape: tuple[int, int, int] = (8, 2, 3), **changed: Any) -> Made:
    head_dim, kv_heads, groups = shape
    config = replace(
        CONFIG,
        head_dim=head_dim,
        num_kv_heads=kv_heads,
        num_heads=kv_heads * groups,
        rotary_dim=head_dim,
        ropes=(RopeConfig(), RopeConfig()),
        attention_scale=head_dim**-0.5,
    )
    config = replace(config, **changed)
    assert config.windows == (5, None)
    cache = TorchCache(config, ROWS, CONTEXT, CPU, torch.float32)
    cache.entries.copy_(random(*cache.entries.shape, seed=head_dim))
    return Made(config, cache, TorchOps(config, cache, Rope(config, CONTEXT, CPU, torch.float32)))


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attended(of: Made, heads: LayerHeads, query: Tensor, row: int, slots: Sequence[int]) -> Tensor:
    """From one token, to these slots of its row, the last of which is its own."""
    config, window = of.config, of.config.windows[heads.layer]
    seen = [*slots] if window is None else [*slots][-window:]
    keys, values = of.cache.entries[heads.layer, row][:, :, seen].double()
    query = query.double().view(config.num_kv_heads, config.num_groups, -1)
    scores = torch.einsum("kgd,ktd->kgt", query, keys) * config.attention_scale
    if heads.sinks is not None:
        scores = torch.cat([scores, heads.sinks.double().view(*query.shape[:2], 1)], -1)
    weights = scores.softmax(-1)[..., : len(seen)]
    return torch.einsum("kgt,ktd->kgd", weights, values).flatten()


def make_heads(of: Made, layer: int, shift: float | None) -> LayerHeads:
    return LayerHeads(
        layer, None, None if shift is None else random(of.config.num_heads, seed=0) + shift
    )


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=1e-5)


@shapes_layers_and_shifts
def test_tokens_of_any_rows_attend_to_what_is_before_them(
    shape: tuple[int, int, int], layer: int, shift: float | None
) -> None:
    """Plain ones, chains and trees, over both lengths."""
    of = made(shape)
    heads = make_heads(of, layer, shift)
    trees = {
        2: (20, (-1, 0, 0, 1, 3, -1)),
        0: (0, (-1, 0, 0, -1, 3, 1, 5)),
        1: (57, longest_tree()),
    }
    steps = [
        RowStep(3, 31, (0,), draws(1)),
        RowStep(3, CONTEXT - 1, (0,), draws(1)),
        *(
            RowStep(row, start, tree, draws(len(tree)), tree)
            for row, (start, tree) in trees.items()
        ),
        RowStep(0, 29, [0] * 5, draws(5)),
    ]
    inputs = torch.from_numpy(token_inputs(steps, [0] * len(steps)))
    queries = random(inputs.shape[1], of.config.num_heads, of.config.head_dim, seed=1)
    actual = of.ops.tokens(inputs, LENGTHS).attend(queries, heads)
    expected = [
        attended(of, heads, query, step.row, slots)
        for query, (step, slots) in zip(
            queries, ((step, slots) for step in steps for slots in seen_slots(step)), strict=True
        )
    ]
    assert_close(actual, torch.stack(expected))


def longest_tree() -> tuple[int, ...]:
    return (-1, *range(MAX_TREE_TOKENS - 3), MAX_TREE_TOKENS - 4, 0)


def draws(count: int) -> list[Draw]:
    return [ANY_DRAW] * count


def seen_slots(step: RowStep) -> list[list[int]]:
    """Of each token, all slots up to its own."""
    all_slots: list[list[int]] = []
    for index in range(len(step.token_ids)):
        parent = index - 1 if step.parents is None else step.parents[index]
        before = all_slots[parent] if parent >= 0 else [*range(step.start)]
        all_slots.append([*before, step.start + index])
    return all_slots


@shapes_layers_and_shifts
def test_a_prompt_attends_to_itself_and_what_is_before(
    shape: tuple[int, int, int], layer: int, shift: float | None
) -> None:
    of = made(shape)
    heads = make_heads(of, layer, shift)
    step = RowStep(2, 17, [0] * 50)
    inputs = torch.from_numpy(absent(PROMPT_LINES, 64, of.cache.capacity - 1))
    inputs[:, :47] = torch.from_numpy(prompt_inputs(step, 3, 50))
    queries = random(64, of.config.num_heads, of.config.head_dim, seed=1)
    actual = of.ops.prompt(inputs, LENGTHS[-1]).attend(queries, heads)
    expected = [
        attended(of, heads, query, step.row, slots)
        for query, slots in zip(queries[:47], seen_slots(step)[3:], strict=True)
    ]
    assert_close(actual[:47], torch.stack(expected))


@pytest.mark.parametrize("rotary_dim", [8, 4])
@pytest.mark.parametrize("norm", [None, "of heads", "of all heads"])
def test_heads_are_normalised_and_turned_and_written(rotary_dim: int, norm: str | None) -> None:
    of = made(is_qk_norm_whole=norm == "of all heads")
    config = replace(of.config, rotary_dim=rotary_dim)
    ops = TorchOps(config, of.cache, Rope(config, CONTEXT, CPU, torch.float32))
    steps = [RowStep(3, 40, (0,), draws(1)), RowStep(1, 7, [0] * 3, draws(3), (-1, 0, 0))]
    inputs = token_inputs(steps, [0, 0])
    qkv = random(4, 10 * 8, seed=3)
    weight = random(8, 8, seed=4)
    heads = qkv.double().view(4, 10, 8)
    queries, keys, values = heads.split([6, 2, 2], 1)
    if norm is not None:
        size = (-2, -1) if norm == "of all heads" else (-1,)
        queries, keys = (
            each / (each.square().mean(size, keepdim=True) + config.norm_eps).sqrt()
            for each in (queries, keys)
        )
        queries, keys = queries * weight[:6], keys * weight[6:]
    positions = torch.tensor([40, 7, 8, 8])
    queries, keys = (turned(each, positions, rotary_dim) for each in (queries, keys))
    before = of.cache.entries.clone()
    tokens = ops.tokens(torch.from_numpy(inputs), LENGTHS)
    placed = LayerHeads(1, None if norm is None else weight, None)
    assert_close(tokens.place_heads(qkv.clone(), placed), queries)
    rows, slots = [3, 1, 1, 1], [40, 7, 8, 9]
    held = of.cache.entries[1][rows, :, :, slots]
    assert_close(held[:, 0], keys)
    assert torch.equal(held[:, 1].double(), values)
    of.cache.entries[1, rows, :, :, slots] = before[1, rows, :, :, slots]
    assert torch.equal(of.cache.entries, before)


def turned(heads: Tensor, positions: Tensor, rotary_dim: int) -> Tensor:
    half = rotary_dim // 2
    frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    turns = torch.polar(torch.ones(()).double(), positions[:, None, None] * frequencies)
    pairs = torch.complex(heads[..., :half], heads[..., half:rotary_dim]) * turns
    return torch.cat([pairs.real, pairs.imag, heads[..., rotary_dim:]], -1)


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("has_made_norm", [False, True])
def test_what_was_made_is_normalised_and_added_and_the_sum_normalised(
    kind: str, has_made_norm: bool
) -> None:
    of = made(norm=kind, residual_multiplier=0.25)
    x, what = random(3, 64, seed=1), random(3, 64, seed=2) * 7 + 1
    norms = [Affine(random(64, seed=3 + each), random(64, seed=5 + each)) for each in range(2)]

    def normed(of_x: Tensor, norm: Affine) -> Tensor:
        mean = of_x.mean(-1, keepdim=True) if kind == "layer" else torch.zeros(())
        spread = ((of_x - mean).square().mean(-1, keepdim=True) + of.config.norm_eps).sqrt()
        bias = norm.bias if kind == "layer" and norm.bias is not None else torch.zeros(())
        return (of_x - mean) / spread * norm.weight + bias

    added = normed(what.double(), norms[0]) if has_made_norm else what.double()
    total = x.double() + 0.25 * added
    actual = of.ops.norm_add(x, what, norms[0] if has_made_norm else None, norms[1])
    assert_close(actual[0], total)
    assert_close(actual[1], normed(total, norms[1]))
    alone = of.ops.norm_add(x, None, None, None)
    assert all(torch.equal(each, x) for each in alone)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_gates_let_pass_what_is_behind_them(activation: str) -> None:
    up = random(3, 32, seed=1)
    plain = made(activation=activation, is_mlp_gated=False, swiglu=None).ops.gate(up)
    gated = made(activation=activation, is_mlp_gated=True, swiglu=None).ops.gate(up)
    x = up.double()
    tanh = torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))
    activated = {
        "silu": x * x.sigmoid(),
        "gelu": x * (1 + torch.erf(x * 0.5**0.5)) / 2,
        "gelu_tanh": x * (1 + tanh) / 2,
        "relu": x.clamp(min=0),
    }[activation]
    assert_close(plain, activated)
    assert_close(gated, activated[:, :16] * x[:, 16:])


def test_gates_are_clamped_on_one_side_and_what_they_let_pass_on_both() -> None:
    up = random(3, 32, seed=1) * 4
    gate, passed = up.double().chunk(2, -1)
    gate, passed = gate.clamp(max=3.0), passed.clamp(-3.0, 3.0)
    made_up = made(is_mlp_gated=True, swiglu=SwiGluConfig(limit=3.0, alpha=1.5)).ops.gate(up)
    assert_close(made_up, gate * (1.5 * gate).sigmoid() * (passed + 1))
