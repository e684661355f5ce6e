"""Gemma 4 as a GGUF file, by what llama.cpp's converter is documented to do with its tensors.

Tests hold the reader to it: layers' scalars and stacks of experts get a suffix, a router's scale
and the experts' are called after other tensors, and the pairs of heads that stand still have a
factor in a tensor of its own.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[np.float32]
SCALES = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}


def write_gemma4_gguf(
    folder: Path,
    target: Path,
    is_split: bool = False,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    """`is_split`: experts' gates and what passes them have a stack each; `kind`: of matrices."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(target, "gemma4")
    _add_shape(writer, config)
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(MODEL_ARCH.GEMMA4, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        for its_name, its_tensor in _converted(name, tensor, names, is_split):
            is_exact = its_tensor.ndim == 1 or ".ffn_gate_inp." in its_name
            its_kind = GGMLQuantizationType.F32 if is_exact else kind
            quantised = gguf.quants.quantize(np.ascontiguousarray(its_tensor), its_kind)
            writer.add_tensor(its_name, quantised, raw_dtype=its_kind)
    _add_unused(writer, config)
    turned = int(global_head_dim(config) * 0.25 / 2)
    still = global_head_dim(config) // 2 - turned
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * turned + [1e30] * still, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add_unused(writer: GGUFWriter, config: dict[str, Any]) -> None:
    """Published checkpoints have projections of layers that share keys and values."""
    shape = (2 * config["head_dim"], config["hidden_size"])
    num_layers = config["num_hidden_layers"]
    for layer in range(num_layers - config["num_kv_shared_layers"], num_layers):
        for kind in ("k", "v"):
            writer.add_tensor(f"blk.{layer}.attn_{kind}.weight", np.ones(shape, np.float32))
        writer.add_tensor(f"blk.{layer}.attn_k_norm.weight", np.ones(shape[0], np.float32))


def global_head_dim(config: dict[str, Any]) -> int:
    own: list[int] = [each["head_dim"] for each in config["per_layer_config"].values()]
    return own[0]


def _converted(name: str, tensor: Array, names: Any, is_split: bool) -> list[tuple[str, Array]]:
    block = ".".join(["blk", *name.split(".")[2:3], ""])
    for end, theirs in SCALES.items():
        if name.endswith(end):
            return [(block + theirs, tensor)]
    if is_split and name.endswith("experts.gate_up_proj"):
        halves = zip(("gate", "up"), np.split(tensor, 2, axis=1), strict=True)
        return [(f"{block}ffn_{kind}_exps.weight", half) for kind, half in halves]
    if name.endswith((".layer_scalar", ".gate_up_proj", ".experts.down_proj")):
        name = f"{name}.weight"
    theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert theirs is not None, name
    return [(str(theirs), tensor)]


def _add_shape(writer: GGUFWriter, config: dict[str, Any]) -> None:
    are_local = [kind == "sliding_attention" for kind in config["layer_types"]]
    num_layers, num_shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    heads = config["num_key_value_heads"]
    own = {int(key): value for key, value in config["per_layer_config"].items()}
    by_layer = [own.get(i, {}).get("num_key_value_heads", heads) for i in range(num_layers)]
    wide = 2 if config["use_double_wide_mlp"] else 1
    ffn, shared = config["intermediate_size"], [wide] * num_shared
    ffn_sizes = [ffn * factor for factor in [1] * (num_layers - num_shared) + shared]
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(num_layers)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(by_layer if len(set(by_layer)) > 1 else heads)
    writer.add_feed_forward_length(ffn_sizes if wide > 1 else ffn)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_shared_kv_layers(num_shared)
    writer.add_embedding_length_per_layer_input(config.get("hidden_size_per_layer_input") or 0)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(are_local)
    writer.add_key_length(global_head_dim(config))
    writer.add_value_length(global_head_dim(config))
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_dimension_count(global_head_dim(config))
    writer.add_rope_dimension_count_swa(config["head_dim"])
    ropes = config["rope_parameters"]
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config.get("enable_moe_block"):
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
