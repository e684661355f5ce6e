"""Reads what a config.json says of a mixture of experts. Loads no torch."""

from collections.abc import Callable
from dataclasses import replace

from inference_api.engine.loading.config import MixtureConfig
from inference_api.engine.loading.config_fields import ConfigFields

MAX_EXPERTS = 1024  # of a layer
# Of all layers together: there are objects for every one. Published models have some 20,000.
MAX_ALL_EXPERTS = 65_536

ReadMixture = Callable[[ConfigFields, int], MixtureConfig | None]


def no_mixture(fields: ConfigFields, num_layers: int) -> None:
    """One MLP in every layer."""


def read_mixtral(fields: ConfigFields, num_layers: int) -> MixtureConfig:
    """Experts in every layer; their size is that of an MLP elsewhere."""
    num_experts = _num_experts(fields, "num_local_experts", num_layers)
    return MixtureConfig(
        num_experts,
        fields.count("num_experts_per_tok", most=num_experts),
        fields.count("intermediate_size"),
        is_renormalised=True,
        dense_layers=frozenset(),
    )


def read_gpt_oss_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig:
    """Mixtral's, with biases."""
    return replace(read_mixtral(fields, num_layers), has_biases=True)


def read_qwen3_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig:
    """Experts in every `decoder_sparse_step`th layer that `mlp_only_layers` does not name."""
    name = "num_experts" if fields.raw.get("num_experts") is not None else "num_local_experts"
    num_experts = _num_experts(fields, name, num_layers)
    step = fields.count("decoder_sparse_step", 1)
    named = fields.raw.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(type(layer) is int for layer in named):
        fields.refuse("mlp_only_layers", named, "a list of layers")
        named = []
    return MixtureConfig(
        num_experts,
        fields.count("num_experts_per_tok", most=num_experts),
        fields.count("moe_intermediate_size"),
        is_renormalised=fields.flag("norm_topk_prob"),
        dense_layers=frozenset(
            {layer for layer in range(num_layers) if (layer + 1) % step} | {*named}
        ),
    )


def _num_experts(fields: ConfigFields, name: str, num_layers: int) -> int:
    return fields.count(name, most=min(MAX_EXPERTS, MAX_ALL_EXPERTS // num_layers))
