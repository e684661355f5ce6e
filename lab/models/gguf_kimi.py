"""GGUF files of Kimi Linear, with all that llama.cpp's converter does to them."""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray
from safetensors.numpy import load_file

from inference_api.loading.families.tensor_names import SCHEMES
from lab.models.gguf_experts import stacked
from lab.models.gguf_vocabulary import read_json

Array = NDArray[np.float32]


def _published(name: str) -> str:
    """Dense layers have another name where transformers has saved them."""
    for saved, published in SCHEMES["kimi_linear"].published_parts.items():
        name = name.replace(saved, published)
    return name


class KimiConverter:
    architecture = "kimi-linear"
    num_further = 0

    def __init__(self, folder: Path) -> None:
        self.config = read_json(folder / "config.json")
        self.config["max_position_embeddings"] = self.config["model_max_length"]
        tensors: dict[str, Array] = load_file(folder / "model.safetensors")
        self._tensors = {_published(name): tensor for name, tensor in tensors.items()}
        num_layers = self.config["num_hidden_layers"]
        self._names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.KIMI_LINEAR, num_layers)

    def tensors(self) -> dict[str, Array]:
        return {
            self._name(its_name): its_tensor
            for name, tensor in stacked(self._tensors).items()
            for its_name, its_tensor in self._converted(name, tensor)
        }

    def _converted(self, name: str, tensor: Array) -> list[tuple[str, Array]]:
        if name.endswith(".A_log"):
            return [(name, -np.exp(tensor))]
        if name.endswith("_conv1d.weight"):
            channels, _, width = tensor.shape
            return [(name, tensor.reshape(1, channels, 1, width))]
        if name.endswith(".kv_b_proj.weight"):
            heads = tensor.reshape(self.config["num_attention_heads"], -1, tensor.shape[1])
            keys, values = np.split(heads, [self.config["qk_nope_head_dim"]], axis=1)
            both = {"k_b": np.ascontiguousarray(keys.transpose(0, 2, 1)), "v_b": values}
            return [(name.replace("kv_b", half), each) for half, each in both.items()]
        name = name.replace(".dt_bias", ".dt_proj.bias")
        return [(name.replace("e_score_correction_bias", "e_score_correction.bias"), tensor)]

    def _name(self, name: str) -> str:
        theirs = self._names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        return str(theirs)

    def add_shape(self, writer: GGUFWriter) -> None:
        config = self.config
        rank, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
        are_full = [kind == "full_attention" for kind in config["layer_types"]]
        writer.add_head_count_kv([int(is_full) for is_full in are_full])
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_kda_head_dim(config["linear_head_dim"])
        if config["q_lora_rank"] is not None:
            writer.add_q_lora_rank(config["q_lora_rank"])
        writer.add_kv_lora_rank(rank)
        writer.add_rope_dimension_count(turned)
        writer.add_key_length(rank + turned)
        writer.add_value_length(rank)
        writer.add_key_length_mla(config["qk_nope_head_dim"] + turned)
        writer.add_value_length_mla(config["v_head_dim"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_token"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_count(config["num_shared_experts"])
        writer.add_expert_group_count(config["num_expert_group"])
        writer.add_expert_group_used_count(config["topk_group"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_leading_dense_block_count(config["mlp_layer_types"].count("dense"))
