"""Attention over a cache against softmax in float64."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference_api.kernels.interface import ffi
from inference_api.kernels.library import (
    CACHE_TYPES,
    Kernels,
)
from inference_api.loading.config import PAGE_TOKENS
from tests.inference_api.kernels.groups import as_groups, of_groups, rotation

CAPACITY = 4 * PAGE_TOKENS
ROWS = 5
NAMES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.int8: "int8",
    torch.uint8: "int4",  # of which a byte has two
}
DTYPES = st.sampled_from(list(NAMES))
BFLOAT16_VARIANT = "avx512bf16"  # which multiplies pairs of bfloat16
SINKS = st.none() | st.sampled_from([-200.0, 0.0, 30.0])  # about which they are


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def caches(kv_heads: int, head_dim: int, dtype: torch.dtype) -> list[Tensor]:
    """Random keys and values."""
    vectors = [random(ROWS, kv_heads, CAPACITY, head_dim, seed=seed) for seed in (1, 2)]
    makers = {torch.int8: as_bytes, torch.uint8: as_groups}
    return [makers[dtype](each) if dtype in makers else each.to(dtype) for each in vectors]


def as_bytes(vectors: Tensor) -> Tensor:
    """Rotated, then steps of a scale, which is behind each vector."""
    vectors = vectors @ rotation(vectors.shape[-1])
    scales = vectors.abs().amax(-1, keepdim=True) / 127
    return torch.cat([(vectors / scales).round().to(torch.int8), scales.view(torch.int8)], -1)


def as_doubles(cache: Tensor, head_dim: int) -> Tensor:
    if cache.dtype == torch.uint8:
        return of_groups(cache, head_dim)
    if cache.dtype != torch.int8:
        return cache.double()
    values, scales = cache[..., :head_dim], cache[..., head_dim:]
    rotated = values.double() * scales.contiguous().view(torch.float32).double()
    return rotated @ rotation(head_dim).double() / (head_dim & -head_dim)


def pointer(tensor: Tensor, kind: str = "void") -> Any:
    """To a tensor's first number: of queries, the rows may lie apart."""
    return ffi.cast(f"{kind} *", tensor.data_ptr())


def paged(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Pages as `PagedCache` has them, in no order, of two layers of which the second one is this
    one; and the tables of all rows."""
    both = torch.stack([keys, values], 2)
    both = both.unflatten(3, (-1, PAGE_TOKENS))  # [rows, kv_heads, 2, pages, positions, slot]
    num_pages = both.shape[3]
    tables = torch.randperm(ROWS * num_pages, generator=torch.Generator().manual_seed(4))
    tables = tables.view(ROWS, num_pages)
    memory = torch.empty(ROWS * num_pages, 2, *both[0, :, :, 0].shape, dtype=keys.dtype)
    memory[tables, 1] = both.movedim(3, 1)
    return memory, tables.int()


def attend(
    kernels: Kernels,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: list[int],
    lengths: list[int],
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of one layer by itself: [tokens, heads * head_dim].

    `queries` is [tokens, heads, head_dim]; `keys` and `values` are [rows, kv_heads, positions,
    head_dim], or for int8 with the four bytes of a scale behind each vector, or of groups. Token t
    sees the first `lengths[t]` positions of row `rows[t]`, or the last `window` of these.
    """
    places, ends = torch.tensor([rows, lengths])
    memory, tables = paged(keys, values)
    pages = {
        "base": pointer(memory, "char"),
        "page_bytes": memory[0].nbytes,
        "tables": pointer(tables, "int32_t"),
        "table_stride": tables.shape[1],
    }
    tokens, heads, head_dim = queries.shape
    kv_heads = keys.shape[1]
    out = torch.empty(tokens, heads * head_dim)
    failed = kernels._library.hearth_attention(
        kernels._context,
        pointer(queries, "float"),
        queries.stride(0),
        CACHE_TYPES[NAMES[keys.dtype]],
        ffi.new("HearthPages *", pages),
        memory[0, 0].nbytes,
        pointer(places, "int64_t"),
        pointer(ends, "int64_t"),
        tokens,
        kv_heads,
        heads // kv_heads,
        head_dim,
        window or 0,
        scale,
        ffi.NULL if sinks is None else pointer(sinks, "float"),
        pointer(out, "float"),
    )
    assert not failed
    return out


def as_used(
    kernels: Kernels, queries: Tensor, keys: Tensor, values: Tensor, scale: float
) -> tuple[tuple[Tensor, Tensor, Tensor], float]:
    """Scaled queries, keys and values, as attention rounds them; and by how much weights of one
    block may differ, relative to the largest one."""
    head_dim = queries.shape[-1]
    keys_and_values = as_doubles(keys, head_dim), as_doubles(values, head_dim)
    scaled = queries * scale
    if keys.dtype == torch.half and kernels.variant == BFLOAT16_VARIANT:
        keys, values = (each.bfloat16().double() for each in keys_and_values)
        return (scaled.bfloat16().double(), keys, values), 2**-9
    if keys.dtype not in (torch.int8, torch.uint8):
        return (queries.double() * scale, *keys_and_values), 0.0
    rotated = (queries * (scale / (head_dim & -head_dim))) @ rotation(head_dim)
    largest = rotated.abs().amax(-1, keepdim=True)
    steps = (rotated * (127 / largest)).round() * (largest / 127)
    used = torch.where(largest < 2**-100, 0, steps).double() @ rotation(head_dim).double()
    return (used, *keys_and_values), 0.5 / 127


def assert_near(kernels: Kernels, error: float, queries: Tensor, *others: Any) -> None:
    """Assert that attention is what it is in float64."""
    keys, values, rows, lengths, scale, window, sinks = others
    used, of_weights = as_used(kernels, queries, keys, values, scale)
    result = attend(kernels, queries, *others).double()
    expected = reference(*used, rows, lengths, window, sinks)
    assert (result - expected).abs().mean() < max(error, of_weights)
    error = max(error, 8 * of_weights)
    torch.testing.assert_close(result, expected, rtol=error, atol=error)


def reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: list[int],
    lengths: list[int],
    window: int | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention in float64, of scaled queries."""
    outputs = []
    for query, row, length in zip(queries, rows, lengths, strict=True):
        first = 0 if window is None else max(0, length - window)
        groups = query.unflatten(0, (keys.shape[1], -1))
        scores = groups @ keys[row, :, first:length].mT
        if sinks is not None:
            scores = torch.cat([scores, sinks.double().view(*scores.shape[:2], 1)], -1)
        weights = scores.softmax(-1)[..., : length - first]
        outputs.append((weights @ values[row, :, first:length]).flatten())
    return torch.stack(outputs)


@st.composite
def heads(draw: st.DrawFn) -> tuple[int, int, int]:
    """Key-value heads, query heads for each of them, head_dim."""
    kv_heads, groups = draw(st.sampled_from([(1, 1), (2, 4), (12, 1), (1, 71), (4, 8), (7, 5)]))
    return kv_heads, groups, draw(st.sampled_from([2, 8, 24, 64, 72, 128, 256, 512, 576]))


@settings(max_examples=15, deadline=None)
@given(
    shape=heads(),
    lengths=st.lists(st.integers(1, CAPACITY), min_size=1, max_size=ROWS),
    window=st.none() | st.integers(1, 60),
    size=st.sampled_from([1e-30, 1.0, 30.0]),
    dtype=DTYPES,
    sink=SINKS,
)
def test_a_step_of_many_rows(
    kernels: Kernels,
    shape: tuple[int, int, int],
    lengths: list[int],
    window: int | None,
    size: float,
    dtype: torch.dtype,
    sink: float | None,
) -> None:
    kv_heads, groups, head_dim = shape
    keys, values = caches(kv_heads, head_dim, dtype)
    queries = random(len(lengths), kv_heads * groups, head_dim) * size
    rows = list(reversed(range(ROWS)))[: len(lengths)]
    sinks = None if sink is None else sink + random(kv_heads * groups, seed=3)
    arguments = (queries, keys, values, rows, lengths, head_dim**-0.5, window, sinks)
    # A score's rounding error is its weight's relative error.
    assert_near(kernels, 2e-5 * max(1.0, size), *arguments)


@settings(max_examples=8, deadline=None)
@given(
    shape=heads(),
    start=st.integers(0, 60),
    num_tokens=st.integers(1, 50),
    window=st.none() | st.integers(1, 60),
    dtype=DTYPES,
    sink=SINKS,
)
def test_a_chunk_of_a_prompt(
    kernels: Kernels,
    shape: tuple[int, int, int],
    start: int,
    num_tokens: int,
    window: int | None,
    dtype: torch.dtype,
    sink: float | None,
) -> None:
    kv_heads, groups, head_dim = shape
    keys, values = caches(kv_heads, head_dim, dtype)
    queries = random(num_tokens, kv_heads * groups, head_dim)
    lengths = list(range(start + 1, start + num_tokens + 1))
    sinks = None if sink is None else sink + random(kv_heads * groups, seed=3)
    arguments = (queries, keys, values, [3] * num_tokens, lengths, head_dim**-0.5, window, sinks)
    assert_near(kernels, 2e-5, *arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, torch.uint8])
@pytest.mark.parametrize(("kv_heads", "groups"), [(2, 3), (9, 1)])
def test_a_token_is_the_same_in_any_company_and_on_any_number_of_threads(
    kernels: Kernels, kv_heads: int, groups: int, dtype: torch.dtype
) -> None:
    keys, values = caches(kv_heads, 40, dtype)
    queries = random(60, kv_heads * groups, 40)
    rows = [1] * 30 + [4, 0, 0, 2] + [3] * 26
    lengths = [*range(50, 80), 1, 112, 33, 64, *range(1, 27)]
    single = Kernels(1, kernels.variant)
    for window in (None, 20):
        together = attend(kernels, queries, keys, values, rows, lengths, 0.2, window)
        assert torch.equal(
            together, attend(single, queries, keys, values, rows, lengths, 0.2, window)
        )
        for token in range(0, 60, 2):
            alone = attend(
                kernels,
                queries[token : token + 1],
                keys,
                values,
                [rows[token]],
                [lengths[token]],
                0.2,
                window,
            )
            assert torch.equal(alone[0], together[token])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.uint8])
def test_what_a_row_does_not_see_does_not_matter(kernels: Kernels, dtype: torch.dtype) -> None:
    keys, values = caches(2, 32, dtype)
    queries, rows, lengths = random(2, 4, 32), [0, 3], [40, 7]
    clean = attend(kernels, queries, keys, values, rows, lengths, 0.25)
    for cache in (keys, values):
        # Of bytes, some at a time and the scales.
        unseen = cache.view(torch.float16 if dtype == torch.uint8 else torch.float32)
        unseen[0, :, 40:] = torch.nan
        unseen[3, :, 7:] = torch.inf
        unseen[[1, 2, 4]] = torch.nan
    assert torch.equal(attend(kernels, queries, keys, values, rows, lengths, 0.25), clean)


def test_queries_may_be_a_part_of_something_wider(kernels: Kernels) -> None:
    keys, values = (random(ROWS, 2, CAPACITY, 16, seed=i) for i in (1, 2))
    wide = random(3, 10, 16)
    arguments = (keys, values, [0, 1, 2], [5, 50, 100], 0.25)
    result = attend(kernels, wide[:, :4], *arguments)
    assert torch.equal(result, attend(kernels, wide[:, :4].contiguous(), *arguments))
