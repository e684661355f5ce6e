"""Reads the config.json of Granite 4: Mamba-2, and some attention, mostly without rope."""

from dataclasses import replace

from inference_api.loading.config import MixtureConfig, ModelConfig
from inference_api.loading.families.fields import ConfigFields
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.mamba import MAMBA, read_mamba
from inference_api.loading.families.mixtures import no_mixture, read_mixtral
from inference_api.loading.families.qwen3_next import IS_SPLIT, LINEAR
from inference_api.loading.families.windows import GLOBAL

_KINDS = {MAMBA: True, LINEAR: True, "attention": False, GLOBAL: False}


def read_granite_hybrid(fields: ConfigFields) -> ModelConfig:
    """A model without experts has only the MLP that other models have besides them."""
    names = "granite_hybrid_split" if fields.flag(IS_SPLIT) else "granite_hybrid"
    has_experts = fields.count("num_local_experts", least=0) > 0
    shared = fields.count("shared_intermediate_size")
    if not has_experts:
        fields = fields.under({**fields.raw, "intermediate_size": shared})
    config = read_llama_like(
        fields, tensor_names=names, mixture=_read_mixture if has_experts else no_mixture
    )
    if config.activation != "silu":
        fields.refuse("hidden_act", fields.raw["hidden_act"], "silu, which convolutions have")
    position = fields.raw.get("position_embedding_type")
    if position not in (None, "nope", "rope"):
        fields.refuse("position_embedding_type", position, "rope or nope")
    ropes = config.ropes if position == "rope" else (None,) * config.num_layers
    layers = _mamba_layers(fields, config.num_layers)
    inner = fields.count("mamba_expand") * config.hidden_size
    recurrent = read_mamba(fields, layers, inner) if layers else None
    return replace(config, ropes=ropes, recurrent=recurrent)


def _read_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig:
    mixture = read_mixtral(fields, num_layers)
    return replace(mixture, shared_ffn_size=fields.count("shared_intermediate_size"))


def _mamba_layers(fields: ConfigFields, num_layers: int) -> frozenset[int]:
    name = "layer_types" if fields.raw.get("layer_types") is not None else "layers_block_type"
    kinds = fields.raw.get(name)
    are_mamba = [_KINDS.get(str(kind)) for kind in kinds] if isinstance(kinds, list) else []
    if len(are_mamba) != num_layers or None in are_mamba or all(are_mamba):
        supported = f"{MAMBA} or attention for each of its {num_layers} layers, and some of this"
        fields.refuse(name, kinds, supported)
        return frozenset()
    return frozenset(layer for layer, is_mamba in enumerate(are_mamba) if is_mamba)
