"""Reads the fields of a config.json about Mamba-2 (Dao and Gu 2024, arXiv 2405.21060)."""

import math

from inference_api.kernels.packing import GROUP
from inference_api.loading.families.fields import MAX_CONV_WIDTH, ConfigFields
from inference_api.loading.families.qwen3_next import (
    DELTA_LANES,
    HAS_DECAYS,
    MAX_DELTA_DIM,
)
from inference_api.loading.families.recurrence import RecurrentConfig

MAMBA = "mamba"  # the name of a layer with Mamba-2 in published files


def read_mamba(
    fields: ConfigFields, layers: frozenset[int], inner: int, has_norm: bool = True
) -> RecurrentConfig:
    """`inner` is the size of the mixer's output."""
    heads = fields.count("mamba_n_heads")
    groups = fields.count("mamba_n_groups", most=heads)
    given = fields.raw.get("mamba_d_head")
    value_dim = inner // heads if given in (None, "auto") else fields.count("mamba_d_head")
    key_dim = fields.count("mamba_d_state", most=MAX_DELTA_DIM)
    if heads % groups or value_dim * heads != inner:
        fields.refuse("mamba_n_heads", heads, f"heads that divide {inner} and are whole groups")
    for name, size in (("mamba_d_head", value_dim), ("mamba_d_state", key_dim)):
        if size % DELTA_LANES or size > MAX_DELTA_DIM:
            fields.refuse(name, size, f"a multiple of {DELTA_LANES} up to {MAX_DELTA_DIM}")
    if has_norm and inner // groups % GROUP:
        fields.refuse("mamba_n_groups", groups, f"groups of a multiple of {GROUP} channels")
    if fields.raw.get("time_step_limit") not in (None, *_NO_LIMITS):
        fields.refuse("time_step_limit", fields.raw["time_step_limit"], "steps of any length")
    return RecurrentConfig(
        "mamba2",
        layers,
        conv_dim=inner + 2 * groups * key_dim,
        conv_width=fields.count("mamba_d_conv", least=2, most=MAX_CONV_WIDTH),
        has_bias=fields.flag("mamba_proj_bias"),
        has_conv_bias=fields.flag("mamba_conv_bias"),
        heads=heads,
        key_heads=groups,
        key_dim=key_dim,
        value_dim=value_dim,
        has_log_decays=not fields.flag(HAS_DECAYS),
        has_norm=has_norm,
    )


# Files use one name or the other.
_NO_LIMITS: tuple[list[object], ...] = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])
