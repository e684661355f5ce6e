"""Reads the config.json of LFM2, whose layers have attention or a short convolution."""

from dataclasses import replace
from functools import partial

from inference_api.loading.config import MixtureConfig, ModelConfig
from inference_api.loading.families.fields import MAX_CONV_WIDTH, ConfigFields, Readers
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.mixtures import ReadMixture, no_mixture, read_experts
from inference_api.loading.families.recurrence import RecurrentConfig
from inference_api.loading.families.windows import GLOBAL

CONV = "conv"  # the name of a layer without attention in `layer_types`
LEAST_SUM = 1e-6


def _read_lfm2(fields: ConfigFields) -> ModelConfig:
    """Reads LFM2 without experts. The MLP may be narrower than `intermediate_size` says."""
    size = "block_ff_dim" if fields.raw.get("block_ff_dim") is not None else "intermediate_size"
    ffn_size = fields.count(size)
    if fields.flag("block_auto_adjust_ff_dim", True):
        ffn_size = int(2 * ffn_size / 3)
        if "block_ffn_dim_multiplier" not in fields.raw or fields.raw["block_ffn_dim_multiplier"]:
            wanted = int(fields.number("block_ffn_dim_multiplier", 1.0) * ffn_size)
            multiple = fields.count("block_multiple_of", 256)
            ffn_size = -(-wanted // multiple) * multiple
    return _read(fields.replace(intermediate_size=ffn_size), no_mixture)


def _read(fields: ConfigFields, mixture: ReadMixture) -> ModelConfig:
    eps = fields.raw.get("norm_eps")
    fields = fields.replace(rms_norm_eps=eps, attention_bias=False, mlp_bias=False)
    if fields.raw.get("tie_embedding") is not None:
        fields = fields.replace(tie_word_embeddings=fields.raw["tie_embedding"])
    config = read_llama_like(fields, has_qk_norm=True, tensor_names="lfm2", mixture=mixture)
    recurrent = RecurrentConfig(
        "short_conv",
        _conv_layers(fields, config.num_layers),
        conv_dim=config.hidden_size,
        conv_width=fields.count("conv_L_cache", least=2, most=MAX_CONV_WIDTH),
        has_bias=fields.flag("conv_bias"),
        has_conv_bias=fields.flag("conv_bias"),
    )
    return replace(config, recurrent=recurrent if recurrent.layers else None)


def _conv_layers(fields: ConfigFields, num_layers: int) -> frozenset[int]:
    """Returns the layers with a convolution. They are named in `layer_types`, or in older files
    missing from `full_attn_idxs`."""
    kinds, attending = fields.raw.get("layer_types"), fields.raw.get("full_attn_idxs")
    if kinds is None and isinstance(attending, list):
        kinds = [GLOBAL if layer in attending else CONV for layer in range(num_layers)]
    if kinds is None:
        return frozenset()
    is_list = isinstance(kinds, list) and len(kinds) == num_layers
    if not is_list or not {GLOBAL} <= {*map(str, kinds)} <= {GLOBAL, CONV}:
        supported = f"{CONV} or {GLOBAL} for each of its {num_layers} layers, and some of these"
        fields.refuse("layer_types", kinds, supported)
        return frozenset()
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == CONV)


def _read_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig:
    """Reads experts in all but the first few layers."""
    return replace(
        read_experts(fields, num_layers),
        is_renormalised=fields.flag("norm_topk_prob", True),
        dense_layers=frozenset(range(fields.count("num_dense_layers", least=0))),
        scoring="sigmoid",
        has_selection_bias=fields.flag("use_expert_bias"),
        scale=fields.number("routed_scaling_factor", 1.0),
        least_sum=LEAST_SUM,
    )


READERS: Readers = {"lfm2": _read_lfm2, "lfm2_moe": partial(_read, mixture=_read_mixture)}
