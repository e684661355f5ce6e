"""Layers that see equally far share pages, in groups of about one size."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from inference_api.loading.checkpoint import load_config
from inference_api.loading.config import LatentConfig, LayerRange, ModelConfig
from inference_api.loading.page_groups import PageGroup, bytes_of_pages, page_groups
from inference_api.runner import PageLayout
from inference_api.settings import EMBEDDED_MODEL

CONTEXT = 4096
FULL, LOCAL = None, 512


def config_of(*windows: int | None) -> ModelConfig:
    config = load_config(EMBEDDED_MODEL)
    ropes = config.ropes[:1] * len(windows)
    return replace(config, num_layers=len(windows), windows=windows, ropes=ropes)


def most_layers(groups: Sequence[PageGroup]) -> int:
    return max(len(each.layers) for each in groups)


@pytest.mark.parametrize(
    ("windows", "num_groups", "num_layers"),
    [
        ((FULL,) * 18, 1, 18),
        ((LOCAL,) * 32, 1, 32),
        ((4096,) * 32, 1, 32),
        ((LOCAL, FULL) * 12, 2, 12),
        (((LOCAL,) * 5 + (FULL,)) * 3, 6, 3),  # Gemma 3 270M
        ((((LOCAL,) * 5 + (FULL,)) * 5)[:26], 7, 4),  # of 1B, where two places are empty
        (((LOCAL,) * 5 + (FULL,)) * 10 + (LOCAL,) * 2, 6, 11),  # of 27B
        ((FULL, *range(10, 20)), 11, 1),
    ],
)
def test_groups_are_few_and_have_few_empty_places(
    windows: tuple[int | None, ...], num_groups: int, num_layers: int
) -> None:
    groups = page_groups(config_of(*windows), CONTEXT)
    assert (len(groups), most_layers(groups)) == (num_groups, num_layers)
    assert sorted(layer for group in groups for layer in group.layers) == [*range(len(windows))]
    for group in groups:
        seen = {windows[layer] for layer in group.layers}
        assert seen in ({group.window}, {4096})


def test_parts_of_a_model_have_its_groups() -> None:
    config = config_of(*((LOCAL,) * 5 + (FULL,)) * 3)
    whole = page_groups(config, CONTEXT)
    parts = [page_groups(config.part(LayerRange(*ends)), CONTEXT) for ends in ((0, 8), (8, 18))]
    for group, first, second in zip(whole, *parts, strict=True):
        assert group.window == first.window == second.window
        assert [*first.layers, *(layer + 8 for layer in second.layers)] == group.layers
    assert [most_layers(each) for each in parts] == [2, 2]


@pytest.mark.parametrize(
    ("kinds", "local", "whole", "expected"),
    [  # layers of a kind (key-value heads, size of each), and groups of each kind
        ((50, 10), (16, 256), (4, 512), (10, 1)),  # Gemma 4 31B
        ((25, 5), (8, 256), (2, 512), (9, 1)),  # 26B-A4B
        ((12, 3), (1, 256), (1, 512), (2, 1)),  # E2B without what shares
        ((4, 4), (2, 64), (2, 64), (1, 1)),
    ],
)
def test_groups_have_layers_of_one_shape_and_pages_few_empty_places(
    kinds: tuple[int, int],
    local: tuple[int, int],
    whole: tuple[int, int],
    expected: tuple[int, int],
) -> None:
    config = config_of(*[LOCAL] * kinds[0], *[FULL] * kinds[1])
    [of_local, of_whole] = (
        config.shape_of(0)._replace(num_kv_heads=heads, head_dim=head_dim)
        for heads, head_dim in (local, whole)
    )
    config = replace(config, shapes=(of_local,) * kinds[0] + (of_whole,) * kinds[1])
    groups = page_groups(config, CONTEXT)
    counts = [sum(group.window == window for group in groups) for window in (LOCAL, FULL)]
    assert counts == [*expected]
    page_bytes = bytes_of_pages(config, groups, dtype="float32")
    for group in groups:
        assert len({config.shape_of(layer) for layer in group.layers}) == 1
        assert bytes_of_pages(config, [group], dtype="float32") <= page_bytes


def test_page_bytes() -> None:
    config = config_of(*[FULL] * 3)
    shape = config.shape_of(0)._replace(num_kv_heads=2, head_dim=16)
    config = replace(config, shapes=(shape,) * 3)
    # layers x (keys, values) x kv heads x positions x head_dim x bytes
    groups = page_groups(config, CONTEXT)
    assert bytes_of_pages(config, groups, dtype="float16") == 3 * 2 * 2 * 32 * 16 * 2


@pytest.mark.parametrize(
    ("num_layers", "kv_rank", "token_bytes"),
    [(27, 512, 31_104), (61, 512, 70_272), (47, 512, 54_144), (36, 256, 23_040)],
    ids=["DeepSeek-V2-Lite", "DeepSeek-V3", "GLM-4.7-Flash", "Mistral 4"],
)
def test_a_token_takes_what_its_latents_take(
    num_layers: int, kv_rank: int, token_bytes: int
) -> None:
    config = replace(
        config_of(*[FULL] * num_layers),
        rotary_dim=64,
        latent=LatentConfig(query_rank=None, kv_rank=kv_rank, value_dim=128),
    )
    groups = page_groups(config, CONTEXT)
    assert bytes_of_pages(config, groups, dtype="float16") == 32 * token_bytes


LAYOUT = PageLayout(0, 32, 1, windows=(None, LOCAL, LOCAL))
OF_WINDOW = (LOCAL - 1 + 512) // 32 + 2


def test_a_window_has_pages_for_what_it_sees_and_a_step() -> None:
    assert LAYOUT.row_pages(1) == 3
    assert LAYOUT.row_pages(320) == 30
    assert LAYOUT.row_pages(32_000) == 1000 + 2 * OF_WINDOW
    assert LAYOUT.first_seen(511) == [0, 0, 0]
    assert LAYOUT.first_seen(511 + 32) == [0, 1, 1]


@pytest.mark.parametrize("window", [1, 2, 33])
def test_a_small_window_sees_the_last_whole_page(window: int) -> None:
    layout = PageLayout(0, 32, 1, windows=(window,))
    assert [layout.first_seen(count)[0] for count in (31, 32, 63, 64, 95, 96)] == [0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("num_pages", [0, 2, 3, 30, 31, 33, 500, 2000])
def test_rows_grow_as_long_as_there_are_pages(num_pages: int) -> None:
    num_tokens = LAYOUT.row_tokens(num_pages, 32_000)
    assert LAYOUT.row_pages(num_tokens) <= num_pages
    assert num_tokens == 32_000 or LAYOUT.row_pages(num_tokens + 1) > num_pages
