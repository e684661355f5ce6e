"""Reads the config.json of families with norms only after attention and MLP: OLMo and EXAONE.

OLMo Hybrid has these in layers with attention alone, and the usual norms in the others.
"""

from dataclasses import replace

from inference_api.loading.config import ModelConfig
from inference_api.loading.families.fields import ConfigFields, Readers
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.qwen3_next import read_delta
from inference_api.loading.families.ropes import DEFAULT_THETA, read_ropes_by_kind
from inference_api.loading.families.windows import are_local_but_every, same_window, with_windows

_OLMO3_LOCAL_THETA = 500_000.0
_DELTA_EPS = 1e-5  # epsilon of a delta rule's norm, whatever the other norms have


def _read_olmo2(fields: ConfigFields) -> ModelConfig:
    """Reads OLMo 2: all heads of the queries, and all of the keys, are normalised as one."""
    fields.allow_only("sliding_window")
    return replace(_read(fields), is_qk_norm_whole=True)


def _read_olmo3(fields: ConfigFields) -> ModelConfig:
    """Reads OLMo 2 with a window in three of four layers, and plain rope there."""
    config = replace(_read(fields), is_qk_norm_whole=True)
    are_local = are_local_but_every(fields, config.num_layers)
    [window, *_] = same_window(fields, config.num_layers)
    ropes = read_ropes_by_kind(fields, config, _OLMO3_LOCAL_THETA)
    return with_windows(config, are_local, window, ropes)


def _read_olmo_hybrid(fields: ConfigFields) -> ModelConfig:
    """Reads OLMo Hybrid: OLMo 2's attention in every fourth layer, without rope if theta is null,
    and a gated delta rule in the others."""
    theta = fields.mapping("rope_parameters").get(
        "rope_theta", fields.raw.get("rope_theta", DEFAULT_THETA)
    )
    hidden_size, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    names = ("linear_num_key_heads", "linear_num_value_heads")
    fields = fields.or_else(dict.fromkeys(names, heads))
    key_dim = 3 * hidden_size // (4 * fields.count(names[0]))
    fields = fields.or_else({"linear_key_head_dim": key_dim})
    value_dim = 2 * fields.count("linear_key_head_dim")
    fields = fields.or_else({"linear_value_head_dim": value_dim})
    config = _read(fields)
    recurrent = replace(
        read_delta(fields, config),
        norm_eps=_DELTA_EPS,
        is_doubled=fields.flag("linear_allow_neg_eigval"),
        has_norms_before=True,
    )
    return replace(
        config,
        is_qk_norm_whole=True,
        ropes=config.ropes if theta is not None else (None,) * config.num_layers,
        tensor_names="olmo_hybrid",
        recurrent=recurrent,
    )


def _read_exaone4(fields: ConfigFields) -> ModelConfig:
    """Reads EXAONE 4: each head is normalised. If most layers have a window, the rest lack rope."""
    config = _read(fields)
    [window, *_] = same_window(fields, config.num_layers)
    if window is None:
        return config
    are_local = are_local_but_every(fields, config.num_layers)
    return with_windows(config, are_local, window, (None, config.ropes[0]))


def _read(fields: ConfigFields) -> ModelConfig:
    return replace(
        read_llama_like(fields, has_qk_norm=True, tensor_names="olmo2"),
        has_attention_norm=False,
        has_mlp_norm=False,
        has_output_norms=True,
    )


READERS: Readers = {
    "exaone4": _read_exaone4,
    "olmo2": _read_olmo2,
    "olmo3": _read_olmo3,
    "olmo_hybrid": _read_olmo_hybrid,
}
