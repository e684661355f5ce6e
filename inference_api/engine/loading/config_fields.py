"""Typed access to a config.json. Loads no torch."""

import reprlib
from collections.abc import Mapping
from typing import Any

from inference_api.engine.loading.config import ACTIVATIONS, RopeConfig, RopeKind

# Beyond every published model, and small enough to plan with: there are objects for every layer.
MAX_LAYERS = 1024
MAX_COUNT = 2**30
MIN_NUMBER, MAX_NUMBER = 1e-30, 1e12  # as float32 has them

ROPE_KINDS: dict[str, RopeKind] = {"default": "default", "linear": "linear", "llama3": "llama3"}
ACTIVATION_ALIASES = {"swish": "silu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


class ConfigFields:
    """Typed access to a config.json; what is wrong with it gathers in `faults`."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.faults: list[str] = []

    def count(self, name: str, default: int | None = None, most: int = MAX_COUNT) -> int:
        """An integer from 1 to `most`. Without a default the key must be there."""
        value = self.raw.get(name)
        value = default if value is None else value
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
            return value
        self.faults.append(
            f"{name}={reprlib.repr(value)} in config.json is not an integer from 1 to {most}; get "
            "the model again."
        )
        return 1

    def number(self, name: str, default: float) -> float:
        value = self.raw.get(name)
        value = default if value is None else value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and MIN_NUMBER <= value <= MAX_NUMBER:
            return float(value)
        self.faults.append(
            f"{name}={reprlib.repr(value)} in config.json is not a number from {MIN_NUMBER:g} to "
            f"{MAX_NUMBER:g}; get the model again."
        )
        return 1.0

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw.get(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.faults.append(
            f"{name}={reprlib.repr(value)} in config.json is neither true nor false; get the model "
            "again."
        )
        return default

    def refuse(self, name: str, value: object, supported: str) -> None:
        self.faults.append(
            f"{name}={reprlib.repr(value)} in config.json is not supported; choose a model with "
            f"{supported}."
        )

    def activation(self, name: str, default: str) -> str:
        given = str(self.raw.get(name) or default)
        activation = ACTIVATION_ALIASES.get(given, given)
        if activation not in ACTIVATIONS:
            self.refuse(name, given, " or ".join((*ACTIVATIONS, *ACTIVATION_ALIASES)))
        return activation

    def rope(self, max_positions: int) -> RopeConfig:
        scaling = ConfigFields({**self.mapping("rope_scaling"), **self.mapping("rope_parameters")})
        given_kind = scaling.raw.get("rope_type") or scaling.raw.get("type") or "default"
        kind = ROPE_KINDS.get(str(given_kind))
        if kind is None:
            self.refuse("rope_type", given_kind, f"{', '.join(ROPE_KINDS)} rope")
        partial = scaling.raw.get("partial_rotary_factor", self.raw.get("partial_rotary_factor"))
        if partial not in (None, 1, 1.0):
            self.refuse("partial_rotary_factor", partial, "rope over the whole head")
        rope = RopeConfig(
            kind or "default",
            theta=scaling.number("rope_theta", self.number("rope_theta", 10_000.0)),
            factor=scaling.number("factor", 1.0),
            low_freq_factor=scaling.number("low_freq_factor", 1.0),
            high_freq_factor=scaling.number("high_freq_factor", 4.0),
            original_max_positions=scaling.count("original_max_position_embeddings", max_positions),
        )
        if rope.kind == "llama3" and rope.low_freq_factor >= rope.high_freq_factor:
            self.refuse("low_freq_factor", rope.low_freq_factor, "one below its high_freq_factor")
        self.faults += scaling.faults
        return rope

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.raw.get(name) or {}
        if isinstance(value, Mapping):
            return value
        self.refuse(name, value, "an object or nothing there")
        return {}

    def eos_token_ids(self, vocab_size: int) -> frozenset[int]:
        return frozenset(i for i in token_ids(self.raw.get("eos_token_id")) if i < vocab_size)


def token_ids(value: object) -> frozenset[int]:
    """The ids in an `eos_token_id`, which may be absent, one id or a list of them."""
    values = value if isinstance(value, list) else [value]
    return frozenset(
        item
        for item in values
        if isinstance(item, int) and not isinstance(item, bool) and item >= 0
    )
