"""Reads the config.json of ERNIE 4.5: Llama with rotary pairs side by side."""

from dataclasses import replace

from inference_api.loading.config import MixtureConfig, ModelConfig
from inference_api.loading.families.fields import ConfigFields, Readers
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.mixtures import MAX_EXPERTS, read_experts


def _read_dense(fields: ConfigFields) -> ModelConfig:
    """Either all projections have biases, or none."""
    has_bias = fields.flag("use_bias")
    biases = {"attention_bias": has_bias, "mlp_bias": has_bias}
    return read_llama_like(fields.under({**fields.raw, **biases}), tensor_names="ernie4_5")


def _read_moe(fields: ConfigFields) -> ModelConfig:
    if fields.flag("use_bias"):
        fields.refuse("use_bias", True, "use_bias=false, as the published ones")
    return read_llama_like(fields, tensor_names="ernie4_5", mixture=_read_mixture)


def _read_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig:
    """Experts in some layers, scored by softmax over all; biases only affect the choice."""
    experts = read_experts(fields, num_layers, "moe_num_experts", "moe_k")
    num_shared = fields.count("moe_num_shared_experts", 2, least=0, most=MAX_EXPERTS)
    first = fields.count("moe_layer_start_index", 1, least=0)
    interval = fields.count("moe_layer_interval", 1)
    last = fields.count("moe_layer_end_index", -1, least=-1)
    last = num_layers - 1 if last == -1 else last
    sparse = (i for i in range(num_layers) if first <= i <= last and (i + 1) % interval == 0)
    return replace(
        experts,
        dense_layers=frozenset(range(num_layers)) - frozenset(sparse),
        has_selection_bias=True,
        shared_ffn_size=num_shared * experts.ffn_size,
    )


READERS: Readers = {
    "ernie4_5": _read_dense,
    "ernie4_5_moe": _read_moe,
}
