"""Reads the sliding windows of a config.json's layers.

Faults are added to the fields' `faults`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from inference_api.loading.config import ModelConfig, RopeConfig
from inference_api.loading.families.fields import ConfigFields

GLOBAL, LOCAL = "full_attention", "sliding_attention"  # names in `layer_types`

ReadWindows = Callable[[ConfigFields, int], tuple[int | None, ...]]


def no_windows(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    return (None,) * num_layers


def same_window(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """Reads Mistral's windows: one for all layers; `null` turns it off."""
    if fields.raw.get("sliding_window") is None:
        return (None,) * num_layers
    return (fields.count("sliding_window"),) * num_layers


def switched_window(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """Reads Qwen3-MoE's windows: one for all layers, if `use_sliding_window` is on."""
    return (same_window if fields.flag("use_sliding_window") else no_windows)(fields, num_layers)


def windows_by_layer(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """Reads Qwen's windows, if switched on: for layers in `layer_types` or `max_window_layers`."""
    if not fields.flag("use_sliding_window") or fields.raw.get("sliding_window") is None:
        return (None,) * num_layers
    window = fields.count("sliding_window")
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        first = fields.count("max_window_layers", 28)
        kinds = [LOCAL if i >= first else GLOBAL for i in range(num_layers)]
    are_local = are_local_layers(fields, kinds, num_layers)
    return tuple(window if is_local else None for is_local in are_local)


def alternating_windows(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """Reads gpt-oss's windows: in every other layer from the first on, or as `layer_types` says."""
    usual = [GLOBAL if layer % 2 else LOCAL for layer in range(num_layers)]
    are_local = are_local_layers(fields, fields.raw.get("layer_types", usual), num_layers)
    windows = zip(same_window(fields, num_layers), are_local, strict=True)
    return tuple(window if is_local else None for window, is_local in windows)


def are_local_but_every(fields: ConfigFields, num_layers: int) -> Sequence[bool]:
    """Returns whether each layer's attention is local, by `layer_types`, or else by
    `sliding_window_pattern`: a number n means that every nth layer is global, and letters give a
    pattern in which G is global."""
    kinds, pattern = fields.raw.get("layer_types"), fields.raw.get("sliding_window_pattern")
    if kinds is None and isinstance(pattern, str) and pattern:
        letters = [pattern[layer % len(pattern)] for layer in range(num_layers)]
        kinds = [GLOBAL if letter == "G" else LOCAL for letter in letters]
    elif kinds is None:
        interval = fields.count("sliding_window_pattern")
        kinds = [LOCAL if (layer + 1) % interval else GLOBAL for layer in range(num_layers)]
    return are_local_layers(fields, kinds, num_layers)


def with_windows(
    config: ModelConfig,
    are_local: Sequence[bool],
    window: int | None,
    ropes: tuple[RopeConfig | None, RopeConfig | None],
) -> ModelConfig:
    """Returns a config whose local layers have this window. `ropes`: for global layers, local."""
    return replace(
        config,
        windows=tuple(window if is_local else None for is_local in are_local),
        ropes=tuple(ropes[is_local] for is_local in are_local),
    )


def are_local_layers(fields: ConfigFields, kinds: object, num_layers: int) -> Sequence[bool]:
    """Returns whether each layer's attention is local; `kinds` is the value of `layer_types`."""
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        fields.refuse("layer_types", kinds, f"one layer type for each of its {num_layers} layers")
        return [False] * num_layers
    return [kind == LOCAL for kind in kinds]
