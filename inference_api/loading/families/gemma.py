"""Reads the config.json of Gemma 3, 3n and 4; of multimodal ones, only the text model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from inference_api.kernels.packing import MAX_STREAMS
from inference_api.loading.config import (
    LayerShape,
    MixtureConfig,
    ModelConfig,
    RopeConfig,
    RopeKind,
    TensorNames,
)
from inference_api.loading.families.fields import ConfigFields, Readers, of_text, text_fields
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.mixtures import ReadMixture, no_mixture, read_experts
from inference_api.loading.families.ropes import DEFAULT_THETA, KINDS, read_ropes_by_kind, rope_of
from inference_api.loading.families.windows import (
    GLOBAL,
    LOCAL,
    are_local_but_every,
    same_window,
    with_windows,
)


def read_gemma3_text(fields: ConfigFields) -> ModelConfig:
    """Reads Gemma 3: norms before and after attention and MLP, windows and two kinds of rope."""
    fields.allow_only("attn_logit_softcapping")
    fields.allow_only("use_bidirectional_attention", False)
    config = _read(fields, "gemma3")
    are_local = are_local_but_every(fields, config.num_layers)
    [window, *_] = same_window(fields, config.num_layers)
    ropes = read_ropes_by_kind(fields, config, fields.number("rope_local_base_freq", 1.0))
    return replace(
        with_windows(config, are_local, window, ropes),
        attention_scale=fields.number("query_pre_attn_scalar", 1.0) ** -0.5,
    )


def _read(
    fields: ConfigFields, tensor_names: TensorNames, mixture: ReadMixture = no_mixture
) -> ModelConfig:
    """Reads the fields that all versions share."""
    renamed = fields.replace(hidden_act=fields.raw["hidden_activation"])
    config = read_llama_like(renamed, has_qk_norm=True, tensor_names=tensor_names, mixture=mixture)
    name = "final_logit_softcapping"
    return replace(
        config,
        embedding_multiplier=math.sqrt(config.hidden_size),
        logits_softcap=None if fields.raw.get(name) is None else fields.number(name, 1.0),
        has_output_norms=True,
    )


def read_gemma3n_text(fields: ConfigFields) -> ModelConfig:
    """Reads Gemma 3n: alternating updates of several streams, and a map of low rank beside
    attention. Like in Gemma 4, layers have embeddings, and the last share keys and values."""
    fields.allow_only("altup_active_idx", 0)
    fields.allow_only("altup_correct_scale", True)
    num_layers = fields.count("num_hidden_layers")
    ffn_sizes = _by_layer(fields, "intermediate_size", num_layers)
    config = _read(fields.replace(intermediate_size=ffn_sizes[0]), "gemma4")
    are_local = are_local_but_every(fields, config.num_layers)
    ropes = read_ropes_by_kind(fields, config, fields.number("rope_local_base_freq", 1.0))
    return replace(
        with_windows(config, are_local, fields.count("sliding_window"), ropes),
        shapes=_gemma3n_shapes(fields, config, are_local, ffn_sizes),
        attention_scale=1.0,
        has_value_norm=True,
        layer_input_size=fields.count("hidden_size_per_layer_input", least=0),
        layer_input_tokens=fields.count("vocab_size_per_layer_input"),
        num_streams=fields.count("altup_num_inputs", least=2, most=MAX_STREAMS),
        laurel_rank=fields.count("laurel_rank"),
    )


_SPARSE_LAYERS, _SPARSITY = 10, 0.95  # usual in models with more layers than that


def _gemma3n_shapes(
    fields: ConfigFields, config: ModelConfig, are_local: Sequence[bool], ffn_sizes: Sequence[Any]
) -> tuple[LayerShape, ...]:
    """Returns the layers' sizes, which differ in MLPs and in whose keys and values they use."""
    name, num_layers = "activation_sparsity_pattern", config.num_layers
    num_sparse = _SPARSE_LAYERS if num_layers > _SPARSE_LAYERS else 0
    usual = [_SPARSITY] * num_sparse + [0.0] * (num_layers - num_sparse)
    shares = _by_layer(fields.or_else({name: usual}), name, num_layers)
    if not all(isinstance(share, int | float) and 0 <= share < 1 for share in shares):
        fields.refuse(name, shares, "shares from 0 to 1, without 1, there")
        shares = usual
    alike = _gemma4_shapes(fields.replace(per_layer_config={}), config, are_local)
    return tuple(
        shape._replace(
            ffn_size=fields.under({"intermediate_size": size}).count("intermediate_size"),
            gate_cutoff=NormalDist().inv_cdf(share) if share else None,
        )
        for shape, size, share in zip(alike, ffn_sizes, shares, strict=True)
    )


def _by_layer(fields: ConfigFields, name: str, num_layers: int) -> list[Any]:
    """Returns a value for each layer, from one for all layers or a list."""
    value = fields.raw[name]
    values = value if isinstance(value, list) else [value] * num_layers
    if len(values) == num_layers:
        return values
    fields.refuse(name, value, f"one for each of its {num_layers} layers")
    return [1] * num_layers


def read_gemma4_unified_text(fields: ConfigFields) -> ModelConfig:
    """Reads Gemma 4 without embeddings per layer."""
    return read_gemma4_text(fields.replace(hidden_size_per_layer_input=None))


def read_gemma4_text(fields: ConfigFields) -> ModelConfig:
    """Reads Gemma 4: norms before and after attention and MLP, and on values. Most layers have a
    window; the others have heads of another size, with rope on part of each."""
    if fields.raw.get("use_bidirectional_attention") == "all":
        fields.refuse("use_bidirectional_attention", "all", "tokens that see those before them")
    config = _read(
        fields.replace(rope_parameters=None, rope_scaling=None),
        "gemma4",
        _read_gemma4_mixture if fields.flag("enable_moe_block") else no_mixture,
    )
    are_local = are_local_but_every(fields, config.num_layers)
    are_local = [*are_local[:-1], False]  # as in transformers, whatever the file says
    shapes = _gemma4_shapes(fields, config, are_local)
    window = fields.count("sliding_window")
    return replace(
        config,
        windows=tuple(window if is_local else None for is_local in are_local),
        ropes=_gemma4_ropes(fields, config.max_positions, are_local, shapes),
        shapes=shapes,
        attention_scale=1.0,
        has_value_norm=True,
        has_layer_scalars=True,
        layer_input_size=fields.count("hidden_size_per_layer_input", 0, least=0),
        layer_input_tokens=fields.count("vocab_size_per_layer_input", config.vocab_size),
    )


def read_gemma4_assistant(fields: ConfigFields) -> ModelConfig:
    """Reads a few layers that draft for a Gemma 4, whose keys and values they use. Ignores
    `use_ordered_embeddings`, which limits the tokens that they guess, only for speed."""
    text = text_fields(fields, "gemma4_text")
    unused = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}
    config = read_gemma4_text(text.replace(**unused, vocab_size_per_layer_input=None))
    return replace(
        config,
        shapes=tuple(shape._replace(kv_source=0) for shape in config.shapes),
        windows=tuple(window and window + 1 for window in config.windows),  # as in transformers
        logits_softcap=None,
        backbone_size=fields.count("backbone_hidden_size", 1536),
    )


def _read_gemma4_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig:
    """Reads experts in every layer, beside an MLP."""
    return replace(
        read_experts(fields, num_layers, per_token="top_k_experts"),
        shared_ffn_size=fields.count("intermediate_size"),
        has_own_norms=True,
    )


_GEMMA4_ROPES = {
    LOCAL: {"rope_type": "default", "rope_theta": 10_000.0},
    GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
_GEMMA4_KINDS: Mapping[str, RopeKind] = {**KINDS, "proportional": "proportional"}


def _gemma4_ropes(
    fields: ConfigFields,
    max_positions: int,
    are_local: Sequence[bool],
    shapes: Sequence[LayerShape],
) -> tuple[RopeConfig, ...]:
    by_kind = fields.under(fields.mapping("rope_parameters"))

    def rope(kind: str, shape: LayerShape) -> RopeConfig:
        scaling = by_kind.under({**_GEMMA4_ROPES[kind], **by_kind.mapping(kind)})
        return rope_of(scaling, DEFAULT_THETA, max_positions, shape.head_dim, _GEMMA4_KINDS)

    layers = zip(are_local, shapes, strict=True)
    return tuple(rope(LOCAL if is_local else GLOBAL, shape) for is_local, shape in layers)


def _gemma4_shapes(
    fields: ConfigFields, config: ModelConfig, are_local: Sequence[bool]
) -> tuple[LayerShape, ...]:
    """Returns the layers' sizes. The last may use earlier keys and values, with a wider MLP."""
    own_sizes = _own_sizes(fields, config, are_local)
    has_one_projection = fields.flag("attention_k_eq_v")
    num_shared = fields.count("num_kv_shared_layers", 0, most=config.num_layers - 1, least=0)
    num_own = config.num_layers - num_shared
    is_wider = fields.flag("use_double_wide_mlp")
    shapes: list[LayerShape] = []
    for layer, is_local in enumerate(are_local):
        sizes = fields.under(own_sizes.mapping(str(layer)))
        if sizes.raw.keys() - {"head_dim", "num_key_value_heads"}:
            fields.refuse("per_layer_config", sizes.raw, "layers that differ in their heads")
        head_dim = sizes.count("head_dim", config.head_dim)
        shape = LayerShape(
            num_kv_heads=sizes.count("num_key_value_heads", config.num_kv_heads),
            head_dim=head_dim,
            value_dim=head_dim,
            rotary_dim=head_dim,
            ffn_size=config.ffn_size,
            has_values=is_local or not has_one_projection,
        )
        if layer >= num_own:
            source = _last_alike(fields, are_local[:num_own], is_local)
            source_shape = shapes[source]
            if (source_shape.num_kv_heads, source_shape.head_dim) != (shape.num_kv_heads, head_dim):
                fields.refuse("per_layer_config", sizes.raw, "heads alike where layers share them")
            shape = shape._replace(kv_source=source, ffn_size=config.ffn_size * (1 + is_wider))
        shapes.append(shape)
    return tuple(shapes)


def _own_sizes(
    fields: ConfigFields, config: ModelConfig, are_local: Sequence[bool]
) -> ConfigFields:
    """Returns the sizes of layers that differ from most, by layer number. Files give them singly,
    or once for all layers without a window."""
    if fields.raw.get("per_layer_config") is not None:
        by_layer = fields.mapping("per_layer_config")  # keys are as wide as the last one
        return fields.under({str(key).lstrip("0") or "0": value for key, value in by_layer.items()})
    sizes = {"head_dim": fields.raw["global_head_dim"]}
    if fields.flag("attention_k_eq_v"):
        sizes["num_key_value_heads"] = fields.raw.get("num_global_key_value_heads")
    layers = range(config.num_layers)
    return fields.under({str(layer): sizes for layer in layers if not are_local[layer]})


def _last_alike(fields: ConfigFields, are_local: Sequence[bool], is_local: bool) -> int:
    """Returns the last of these layers whose attention is local (`is_local`) or is not."""
    alike = [layer for layer, each in enumerate(are_local) if each == is_local]
    if not alike:
        number = fields.raw["num_kv_shared_layers"]
        fields.refuse("num_kv_shared_layers", number, "a layer of each type before those")
    return max(alike, default=0)


ASSISTANTS: Readers = {
    "gemma4_assistant": read_gemma4_assistant,
    "gemma4_unified_assistant": read_gemma4_assistant,
}
READERS: Readers = {
    "gemma3": of_text("gemma3_text", read_gemma3_text),
    "gemma3_text": read_gemma3_text,
    "gemma3n": of_text("gemma3n_text", read_gemma3n_text),
    "gemma3n_text": read_gemma3n_text,
    "gemma4": of_text("gemma4_text", read_gemma4_text),
    "gemma4_text": read_gemma4_text,
    "gemma4_unified": of_text("gemma4_unified_text", read_gemma4_unified_text),
    "gemma4_unified_text": read_gemma4_unified_text,
}
