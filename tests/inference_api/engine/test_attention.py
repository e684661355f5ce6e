"""Torch's ways of attention against softmax in float64, with sinks."""

import pytest
import torch
from torch import Tensor

from inference_api.engine.cuda import attention
from inference_api.engine.cuda.attention import (
    ChunkAttention,
    FixedAttention,
    StepAttention,
    TokenPlace,
)
from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.loading.families.read import read_config

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
ROWS, LENGTH = 2, 16
CPU = torch.device("cpu")


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def expected(layer: int, queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor) -> Tensor:
    """Of a row's last token, from all of the row's keys and values [tokens, kv_heads, head_dim]."""
    first = 0 if CONFIG.windows[layer] is None else max(0, len(keys) - 5)
    heads = queries.double().view(2, 3, 8)
    scores = torch.einsum("kgd,tkd->kgt", heads, keys[first:].double()) * CONFIG.attention_scale
    whole = torch.cat([scores, sinks.double().view(2, 3, 1)], -1)
    weights = whole.softmax(-1)[..., :-1]
    return torch.einsum("kgt,tkd->kgd", weights, values[first:].double()).flatten()


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("shift", [-30.0, 0.0, 30.0])
def test_sinks_take_their_share(layer: int, shift: float) -> None:
    assert CONFIG.windows == (5, None)
    cache = TorchCache(CONFIG, ROWS, LENGTH, CPU, torch.float32)
    sinks = random(6, seed=0) + shift
    queries, keys, values = (random(12, heads, 8, seed=heads) for heads in (6, 2, 2))
    chunk = ChunkAttention(CONFIG, cache, 1, 0, 11)(
        layer, queries[:11], keys[:11], values[:11], sinks
    )
    query, key, value = queries[11:], keys[11:], values[11:]
    attend = StepAttention(CONFIG, cache, [TokenPlace(1, 11, 11)], 0)
    step = attend(layer, query, key, value, sinks)
    for row in range(11):
        seen = keys[: row + 1], values[: row + 1]
        assert_close(chunk[row], expected(layer, queries[row], *seen, sinks))
    whole = expected(layer, queries[11], keys, values, sinks)
    assert_close(step[0], whole)
    fixed = FixedAttention(CONFIG, cache, torch.tensor([-1, 11]), [LENGTH])
    query, key, value = (each.expand(ROWS, -1, -1) for each in (query, key, value))
    result = fixed(layer, query.contiguous(), key, value, sinks)
    assert_close(result[1], whole)


@pytest.mark.parametrize("layer", [0, 1])
def test_the_last_token_of_a_chunk_may_be_attended_apart(
    layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is where torch would get it wrong."""
    cache = TorchCache(CONFIG, ROWS, LENGTH, CPU, torch.float32)
    queries, keys, values = (random(9, heads, 8, seed=heads) for heads in (6, 2, 2))

    def attended() -> Tensor:
        return ChunkAttention(CONFIG, cache, 1, 2, 9)(layer, queries, keys, values, None)

    whole = attended()
    monkeypatch.setattr(attention, "_loses_last", lambda queries: True)
    assert_close(attended(), whole.double())
