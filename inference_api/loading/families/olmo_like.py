"""Reads the config.json of families with norms only after attention and MLP: OLMo and EXAONE."""

from dataclasses import replace

from inference_api.loading.config import ModelConfig
from inference_api.loading.families.fields import ConfigFields
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.ropes import read_ropes_by_kind
from inference_api.loading.families.windows import are_local_but_every, same_window, with_windows

_OLMO3_LOCAL_THETA = 500_000.0


def read_olmo2(fields: ConfigFields) -> ModelConfig:
    """All heads of the queries or keys are normalised as one."""
    if fields.raw.get("sliding_window"):
        fields.refuse("sliding_window", fields.raw["sliding_window"], "no sliding_window")
    return replace(_read(fields), is_qk_norm_whole=True)


def read_olmo3(fields: ConfigFields) -> ModelConfig:
    """OLMo 2 with a window in three of four layers, and plain rope there."""
    fields = fields.or_else({"sliding_window": 4096, "sliding_window_pattern": 4})
    config = replace(_read(fields), is_qk_norm_whole=True)
    are_local = are_local_but_every(fields, "sliding_window_pattern", config.num_layers)
    [window, *_] = same_window(fields, config.num_layers)
    ropes = read_ropes_by_kind(fields, config, _OLMO3_LOCAL_THETA)
    return with_windows(config, are_local, window, ropes)


def read_exaone4(fields: ConfigFields) -> ModelConfig:
    """Each head is normalised. If most layers have a window, the others have no rope."""
    config = _read(fields)
    [window, *_] = same_window(fields, config.num_layers)
    if window is None:
        return config
    fields = fields.or_else({"sliding_window_pattern": 4})
    are_local = are_local_but_every(fields, "sliding_window_pattern", config.num_layers)
    return with_windows(config, are_local, window, (None, config.ropes[0]))


def _read(fields: ConfigFields) -> ModelConfig:
    fields = fields.or_else({"rms_norm_eps": 1e-5})
    return replace(
        read_llama_like(fields, has_qk_norm=True, tensor_names="olmo2"),
        has_attention_norm=False,
        has_mlp_norm=False,
        has_output_norms=True,
    )
