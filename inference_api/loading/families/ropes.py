"""Reads the rotary embedding of a config.json, in both spellings.

transformers writes `rope_parameters` since version 5, and wrote `rope_theta`, `rope_scaling` and
`partial_rotary_factor` before. Faults are added to the fields' `faults`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from inference_api.loading.config import ModelConfig, RopeConfig, RopeKind
from inference_api.loading.families.fields import ConfigFields
from inference_api.loading.families.windows import GLOBAL, LOCAL
from inference_api.settings.model import MIN_CONTEXT_TOKENS

_COMMON: tuple[RopeKind, ...] = ("default", "linear", "llama3", "yarn")
KINDS: Mapping[str, RopeKind] = {kind: kind for kind in _COMMON}
PHI_KINDS: Mapping[str, RopeKind] = {  # two are older names of the third
    "default": "default",
    "longrope": "longrope",
    "su": "longrope",
    "yarn": "longrope",
}
PARTIAL = "partial_rotary_factor"
ALL_DIMENSIONS = "mscale_all_dim"
ORIGINAL_POSITIONS = "original_max_position_embeddings"
DEFAULT_THETA = 10_000.0
QUERY_GROWTH = "llama_4_scaling_beta"
ROUNDING = 1e-6  # above the rounding error of a share of dimensions


def read_rotary_dim(fields: ConfigFields, head_dim: int, usual_share: float | None) -> int:
    """Returns how many dimensions of a head rotate. `usual_share` is the family's default; None:
    the family always rotates whole heads."""
    scaling = fields.under({PARTIAL: fields.raw.get(PARTIAL)} | _scaling(fields))
    share = scaling.number(PARTIAL, usual_share or 1.0)
    if share == 1.0:
        return head_dim
    if usual_share is None:
        fields.refuse(PARTIAL, share, "rope over the whole head")
        return head_dim
    rotary_dim = int(head_dim * min(share, 2.0) + ROUNDING)
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        fields.refuse(PARTIAL, share, f"rope over an even number of a head's {head_dim} dimensions")
        return head_dim
    return rotary_dim


def read_rope(
    fields: ConfigFields, max_positions: int, rotary_dim: int, kinds: Mapping[str, RopeKind] = KINDS
) -> RopeConfig:
    """Returns the rotary embedding that all layers share."""
    context = fields.raw.get(ORIGINAL_POSITIONS)
    own = {} if context is None else {ORIGINAL_POSITIONS: context}
    scaling = fields.under(_scaling(fields) | own)
    theta = fields.number("rope_theta", DEFAULT_THETA)
    return rope_of(scaling, theta, max_positions, rotary_dim, kinds)


def read_ropes_by_kind(
    fields: ConfigFields, config: ModelConfig, local_theta: float
) -> tuple[RopeConfig, RopeConfig]:
    """Returns the rope of layers without a window, and the rope of layers with one. The latter is
    plain, with `local_theta`, unless `rope_parameters` says otherwise."""
    by_kind = fields.under(fields.mapping("rope_parameters"))

    def rope(kind: str, theta: float) -> RopeConfig:
        scaling = by_kind.under(by_kind.mapping(kind))
        return rope_of(scaling, theta, config.max_positions, config.rotary_dim)

    of_all = config.ropes[0]
    if GLOBAL in by_kind.raw:
        of_all = rope(GLOBAL, fields.number("rope_theta", DEFAULT_THETA))
    assert of_all is not None
    return of_all, rope(LOCAL, local_theta)


def rope_of(
    scaling: ConfigFields,
    theta: float,
    max_positions: int,
    rotary_dim: int,
    kinds: Mapping[str, RopeKind] = KINDS,
) -> RopeConfig:
    """Returns the rope that an object of `rope_parameters` describes. `theta` is its default."""
    kind_name = scaling.raw.get("rope_type") or scaling.raw.get("type") or "default"
    kind = kinds.get(str(kind_name))
    if kind is None:
        scaling.refuse("rope_type", kind_name, f"{', '.join(kinds)} rope")
    least = MIN_CONTEXT_TOKENS if kind == "longrope" else 1  # there it is the context by default
    original_max_positions = scaling.count(ORIGINAL_POSITIONS, max_positions, least=least)
    rope = RopeConfig(
        kind or "default",
        theta=scaling.number("rope_theta", theta),
        factor=scaling.number("factor", 1.0),
        original_max_positions=original_max_positions,
    )
    if scaling.raw.get(QUERY_GROWTH):
        rope = replace(rope, query_growth=scaling.number(QUERY_GROWTH, 1.0))
    if scaling.raw.get("factor") is None and kind in ("longrope", "yarn"):
        rope = replace(rope, factor=max_positions / original_max_positions)
    read = _READ.get(rope.kind)
    return rope if read is None else read(scaling, rope, rotary_dim // 2)


def read_score_magnitude(fields: ConfigFields, rope: RopeConfig) -> float:
    """Returns the factor of attention scores with DeepSeek's yarn, besides the magnitude of turned
    queries and keys."""
    scaling = fields.under(_scaling(fields))
    if rope.kind != "yarn" or not scaling.raw.get(ALL_DIMENSIONS):
        return 1.0
    return _yarn_magnitude(rope, scaling.number(ALL_DIMENSIONS, 1.0)) ** 2


def _yarn_magnitude(rope: RopeConfig, share: float) -> float:
    return 1.0 + 0.1 * share * math.log(max(rope.factor, 1.0))


def _scaling(fields: ConfigFields) -> dict[str, Any]:
    return {**fields.mapping("rope_scaling"), **fields.mapping("rope_parameters")}


def _read_llama3(scaling: ConfigFields, rope: RopeConfig, num_pairs: int) -> RopeConfig:
    low = scaling.number("low_freq_factor", 1.0)
    high = scaling.number("high_freq_factor", 4.0)
    if low >= high:
        scaling.refuse("low_freq_factor", low, "one below its high_freq_factor")
    return replace(rope, low_freq_factor=low, high_freq_factor=high)


def _read_longrope(scaling: ConfigFields, rope: RopeConfig, num_pairs: int) -> RopeConfig:
    share = math.log(max(rope.factor, 1.0)) / math.log(max(rope.original_max_positions, 2))
    return replace(
        rope,
        short_factors=scaling.numbers("short_factor", num_pairs),
        long_factors=scaling.numbers("long_factor", num_pairs),
        magnitude=scaling.number("attention_factor", math.sqrt(1.0 + share)),
    )


def _read_proportional(scaling: ConfigFields, rope: RopeConfig, num_pairs: int) -> RopeConfig:
    share = scaling.number(PARTIAL, 1.0)
    if share > 1.0:
        scaling.refuse(PARTIAL, share, "rope over a part of each head")
    return replace(rope, num_turned=int(share * num_pairs + ROUNDING))


def _read_yarn(scaling: ConfigFields, rope: RopeConfig, num_pairs: int) -> RopeConfig:
    usual = _yarn_magnitude(rope, 1.0)
    if scaling.raw.get("mscale") and scaling.raw.get(ALL_DIMENSIONS):
        usual = _yarn_magnitude(rope, scaling.number("mscale", 1.0))
        usual /= _yarn_magnitude(rope, scaling.number(ALL_DIMENSIONS, 1.0))
    if rope.theta <= 1.0:
        scaling.refuse("rope_theta", rope.theta, "one above 1")
    return replace(
        rope,
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        is_truncated=scaling.flag("truncate", True),
        magnitude=scaling.number("attention_factor", usual),
    )


_READ: Mapping[RopeKind, Callable[[ConfigFields, RopeConfig, int], RopeConfig]] = {
    "llama3": _read_llama3,
    "longrope": _read_longrope,
    "proportional": _read_proportional,
    "yarn": _read_yarn,
}
