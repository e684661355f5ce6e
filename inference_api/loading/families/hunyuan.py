"""Reads the config.json of Hunyuan: Llama with queries and keys normalised after rope."""

from dataclasses import replace

from inference_api.loading.config import MixtureConfig, ModelConfig
from inference_api.loading.families.fields import ConfigFields, Readers
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.mixtures import ReadMixture, no_mixture, read_mixtral
from inference_api.loading.families.ropes import DEFAULT_THETA


def _read_moe(fields: ConfigFields) -> ModelConfig:
    """Reads experts in all layers, and an MLP as wide as one expert. Refuses sizes that differ
    between layers."""
    sizes = {name: _same(fields, name) for name in ("moe_topk", "num_experts")}
    only = {"moe_intermediate_size": fields.raw.get("intermediate_size"), "num_shared_expert": 1}
    for name, wanted in only.items():
        if _same(fields, name) not in (None, wanted):
            fields.refuse(name, fields.raw[name], f"{name}={wanted}")
    sizes |= {"num_local_experts": sizes["num_experts"], "num_experts_per_tok": sizes["moe_topk"]}
    return _read(fields.replace(**sizes), _read_mixture)


def _read(fields: ConfigFields, mixture: ReadMixture = no_mixture) -> ModelConfig:
    config = read_llama_like(
        _with_plain_rope(fields), has_qk_norm=True, tensor_names="hunyuan", mixture=mixture
    )
    return replace(config, is_qk_norm_last=True)


def _read_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig:
    mixture = read_mixtral(fields, num_layers)
    return replace(mixture, shared_ffn_size=mixture.ffn_size)


def _same(fields: ConfigFields, name: str) -> object:
    """Returns a field's value, which is given once, or for each layer and must be the same."""
    value = fields.raw.get(name)
    if not isinstance(value, list):
        return value
    if not value or value.count(value[0]) < len(value):
        fields.refuse(name, value, "the same in all layers")
        return None
    return value[0]


def _with_plain_rope(fields: ConfigFields) -> ConfigFields:
    """Returns fields with plain rope. This family's dynamic rope is only an `alpha` that changes
    theta once."""
    scaling = fields.under({**fields.mapping("rope_scaling"), **fields.mapping("rope_parameters")})
    kind = scaling.raw.get("rope_type") or scaling.raw.get("type")
    if kind != "dynamic":
        return fields
    if not scaling.raw.get("alpha"):
        fields.refuse("alpha", scaling.raw.get("alpha"), "an alpha beside dynamic rope")
    theta = scaling.number("rope_theta", fields.number("rope_theta", DEFAULT_THETA))
    usual = fields.count("hidden_size") // fields.count("num_attention_heads")
    head_dim = max(4, fields.count("head_dim", max(1, usual)))
    theta *= scaling.number("alpha", 1.0) ** (head_dim / (head_dim - 2))
    rope = {"rope_type": "default", "rope_theta": theta}
    return fields.replace(rope_scaling=None, rope_parameters=rope)


READERS: Readers = {"hunyuan_v1_dense": _read, "hunyuan_v1_moe": _read_moe}
