"""Typed access to a config.json."""

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, Self

from inference_api.loading.config import ACTIVATIONS, ModelConfig
from inference_api.loading.families.defaults import DEFAULTS, NULLABLE

# Bounds above every published model. Names with the ends in MOST have smaller bounds, because
# there are objects for every layer, and orders of rows for heads and latents.
MAX_COUNT = 2**30
MAX_LAYERS = 1024
MOST = {"_layers": MAX_LAYERS, "_heads": 1024, "head_dim": 2048, "_rank": 2**16}
MAX_CONV_WIDTH = 16  # the kernels' limit, from `src/kernels.h`
MIN_NUMBER, MAX_NUMBER = 1e-30, 1e12  # well within float32
AGAIN = "get the model again"

ACTIVATION_ALIASES = {"swish": "silu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


class ConfigFields:
    """Typed access to a config.json. Faults found are collected in `faults`."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.faults: list[str] = []

    def under(self, raw: Mapping[str, Any]) -> Self:
        """Returns access to an object inside it, with the same `faults`."""
        inner = type(self)(raw)
        inner.faults = self.faults
        return inner

    def replace(self, **values: Any) -> Self:
        """Returns access to the same object with these values instead of its own."""
        return self.under({**self.raw, **values})

    def or_else(self, defaults: Mapping[str, Any]) -> Self:
        """Returns access with these values for keys that are absent or null."""
        present = {name: value for name, value in self.raw.items() if value is not None}
        return self.under({**defaults, **present})

    def with_defaults(self) -> Self:
        """Returns access with the family's values for keys that are absent."""
        defaults = dict(DEFAULTS.get(str(self.raw.get("model_type")), {}))
        if self.raw.get("rope_scaling") or self.raw.get("rope_parameters"):
            defaults.pop("rope_parameters", None)
        absent = {n for n in defaults.keys() - NULLABLE if self.raw.get(n) is None}
        return self.under({**defaults, **{n: v for n, v in self.raw.items() if n not in absent}})

    def count(
        self, name: str, default: int | None = None, most: int | None = None, least: int = 1
    ) -> int:
        """Returns an integer from `least` to `most`; see `MOST`. Without a default the key must be
        present."""
        if most is None:
            most = next((most for end, most in MOST.items() if name.endswith(end)), MAX_COUNT)
        value = self.raw.get(name)
        value = default if value is None else value
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self._note(name, value, f"is not an integer from {least} to {most}; {AGAIN}")
        return min(max(1, least), most)

    def number(self, name: str, default: float) -> float:
        value = self.raw.get(name)
        value = default if value is None else value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and MIN_NUMBER <= value <= MAX_NUMBER:
            return float(value)
        self._note(name, value, f"is not a number from {MIN_NUMBER:g} to {MAX_NUMBER:g}; {AGAIN}")
        return 1.0

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """Returns a list of `length` numbers."""
        values = self.raw.get(name)
        if isinstance(values, list) and len(values) == length:
            return tuple(self.under({name: value}).number(name, math.nan) for value in values)
        self._note(name, values, f"is no list of {length} numbers; {AGAIN}")
        return (1.0,) * length

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw.get(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self._note(name, value, f"is neither true nor false; {AGAIN}")
        return default

    def refuse(self, name: str, value: object, supported: str) -> None:
        self._note(name, value, f"is not supported; choose a model with {supported}")

    def allow_only(self, name: str, *supported: object) -> None:
        """Refuse all values but `supported`; the key may be absent."""
        value = self.raw.get(name)
        if value not in (None, *supported):
            choices = " or ".join(str(each).lower() for each in supported)
            self.refuse(name, value, f"{name}={choices}" if supported else f"no {name}")

    def _note(self, name: str, value: object, fault: str) -> None:
        self.faults.append(f"{name}={reprlib.repr(value)} in config.json {fault}.")

    def activation(self, name: str, default: str) -> str:
        value = str(self.raw.get(name) or default)
        activation = ACTIVATION_ALIASES.get(value, value)
        if activation not in ACTIVATIONS:
            self.refuse(name, value, " or ".join((*ACTIVATIONS, *ACTIVATION_ALIASES)))
        return activation

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.raw.get(name) or {}
        if isinstance(value, Mapping):
            return value
        self.refuse(name, value, "an object or nothing there")
        return {}


def token_ids(value: object) -> frozenset[int]:
    """Returns the ids in an `eos_token_id`, which may be absent, an id, or a list of ids."""
    values = value if isinstance(value, list) else [value]
    return frozenset(
        item
        for item in values
        if isinstance(item, int) and not isinstance(item, bool) and item >= 0
    )


def text_fields(fields: ConfigFields, family: str) -> ConfigFields:
    """Returns the fields of the text model inside a multimodal one, usually of this family."""
    text = {
        "model_type": family,
        "tie_word_embeddings": fields.raw.get("tie_word_embeddings"),
        **fields.mapping("text_config"),
    }
    if fields.raw.get("eos_token_id"):  # ids from all its files: see `checkpoint.load_config`
        text["eos_token_id"] = fields.raw["eos_token_id"]
    return fields.under(text).with_defaults()


Reader = Callable[[ConfigFields], ModelConfig]
Readers = Mapping[str, Reader]  # keys: `model_type`


def of_text(family: str, read: Reader) -> Reader:
    """Returns the reader of a multimodal model, which reads the text model alone."""
    return lambda fields: read(text_fields(fields, family))
