"""Reads the sliding windows of a config.json's layers.

What is wrong gathers in the fields' faults.
"""

from collections.abc import Callable, Sequence

from inference_api.loading.families.fields import ConfigFields

GLOBAL, LOCAL = "full_attention", "sliding_attention"  # as `layer_types` calls a layer's attention

ReadWindows = Callable[[ConfigFields, int], tuple[int | None, ...]]


def no_windows(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    return (None,) * num_layers


def same_window(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """Mistral: one window for all layers; `null` turns it off."""
    if fields.raw.get("sliding_window") is None:
        return (None,) * num_layers
    return (fields.count("sliding_window"),) * num_layers


def switched_window(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """Qwen3-MoE: one window for all layers, behind a switch."""
    return (same_window if fields.flag("use_sliding_window") else no_windows)(fields, num_layers)


def windows_by_layer(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """Qwen: behind a switch, for the layers that `layer_types` or `max_window_layers` name."""
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
    """gpt-oss: in every other layer from the first on, unless `layer_types` names them."""
    usual = [GLOBAL if layer % 2 else LOCAL for layer in range(num_layers)]
    are_local = are_local_layers(fields, fields.raw.get("layer_types", usual), num_layers)
    windows = zip(same_window(fields, num_layers), are_local, strict=True)
    return tuple(window if is_local else None for window, is_local in windows)


def are_local_layers(fields: ConfigFields, kinds: object, num_layers: int) -> Sequence[bool]:
    """Whether the attention of each layer is local; `kinds` are its `layer_types`."""
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        fields.refuse("layer_types", kinds, f"one layer type for each of its {num_layers} layers")
        return [False] * num_layers
    return [kind == LOCAL for kind in kinds]
