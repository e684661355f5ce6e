"""Writes a split of layers in the formats of engines. Pure: any thread."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from weights.partition import ranges


def engine_settings(layers: Sequence[int]) -> dict[str, object]:
    """Returns for each engine the setting that gives node i `layers[i]` layers, in ring order. Only
    llama.cpp supports a node without layers."""
    counts = ",".join(map(str, layers))
    split = tensor_split(layers)
    anywhere: dict[str, object] = {
        "layers": [list(one) for one in ranges(layers)],
        "llama_cpp": {"--tensor-split": split},
        "llama_bench": {"--tensor-split": split.replace(",", "/")},  # its comma separates tests
    }
    if 0 in layers:
        return anywhere
    return anywhere | {
        "vllm": {"VLLM_PP_LAYER_PARTITION": counts},
        "sglang": {"SGLANG_PP_LAYER_PARTITION": counts},
        "exo": {"shard_assignments": shard_assignments(layers)},
        "pipeline": {"SPLIT": counts},  # Hearth
    }


def tensor_split(layers: Sequence[int]) -> str:
    """Returns llama.cpp's proportions. It puts layer i of n, and the output as layer n, on the
    first device whose cumulative share exceeds i / (n + 1). Cuts halfway between two layers are
    safe from rounding."""
    cuts = [max(0.0, end - 0.5) for end in accumulate(layers[:-1])]
    return ",".join(f"{b - a:g}" for a, b in pairwise([0.0, *cuts, sum(layers) + 1.0]))


def shard_assignments(layers: Sequence[int]) -> list[dict[str, int]]:
    """Returns exo's shard of each rank, to be named after its runner and node."""
    return [
        {
            "device_rank": rank,
            "world_size": len(layers),
            "start_layer": start,
            "end_layer": end,
            "n_layers": sum(layers),
        }
        for rank, (start, end) in enumerate(ranges(layers))
    ]
