"""GGUF files of models with recurrent layers, with all that llama.cpp's converter does to them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.numpy import load_file

from common.files import whole_file
from lab.models.gguf_experts import stacked
from lab.models.gguf_kimi import KimiConverter
from lab.models.gguf_vocabulary import add_vocabulary, read_json

Array = NDArray[np.float32]
ARCHITECTURES = {
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
}
NUMBERS = {architecture: number for number, architecture in gguf.MODEL_ARCH_NAMES.items()}
NEXT = "qwen3next"
MTP_NAMES = {
    "mtp.layers.0.": "",
    "mtp.fc.": "eh_proj.",
    "mtp.pre_fc_norm_embedding.": "enorm.",
    "mtp.pre_fc_norm_hidden.": "hnorm.",
    "mtp.norm.": "shared_head.norm.",
}


class Converter:
    """What becomes of the tensors of a model with a delta rule."""

    def __init__(self, folder: Path, is_old: bool) -> None:
        """`is_old`: projections of Qwen3-Next are as safetensors have them."""
        self.config = read_json(folder / "config.json")
        self.architecture = ARCHITECTURES[self.config["model_type"]]
        self._is_old = is_old
        tensors: dict[str, Array] = load_file(folder / "model.safetensors")
        self._tensors = {self._as_layer(name): tensor for name, tensor in tensors.items()}
        self.num_further = int("mtp.fc.weight" in tensors)  # layers
        self.key_heads, self.heads, self.key_dim, self.value_dim = (
            self.config[f"linear_{name}"]
            for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
        )
        self._names = gguf.get_tensor_name_map(
            NUMBERS[self.architecture], self.config["num_hidden_layers"] + self.num_further
        )

    def _as_layer(self, name: str) -> str:
        """The layer that guesses further tokens as one more layer."""
        for begin, its_begin in MTP_NAMES.items():
            if name.startswith(begin):
                layer = f"model.layers.{self.config['num_hidden_layers']}."
                return layer + its_begin + name.removeprefix(begin)
        return name

    def tensors(self) -> dict[str, Array]:
        converted: dict[str, Array] = {}
        for name, tensor in stacked(self._tensors).items():
            if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                converted |= self._unstacked(name, tensor)
                continue
            for its_name, its_tensor in self._converted(name, tensor):
                converted[self._name(its_name)] = its_tensor
        return converted

    def _unstacked(self, name: str, tensor: Array) -> dict[str, Array]:
        prefix, _, kind = name.rpartition(".")
        kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
        parts = zip(kinds, np.split(tensor, len(kinds), axis=1), strict=True)
        return {self._name(f"{prefix}.{its_kind}.weight"): part for its_kind, part in parts}

    def _converted(self, name: str, tensor: Array) -> list[tuple[str, Array]]:
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            return [(name, tensor + 1)]
        if name.endswith(".A_log"):
            return [(name, self._tiled(-np.exp(tensor), 1))]
        if name.endswith(".dt_bias"):
            return [(name.replace("dt_bias", "dt_proj.bias"), self._tiled(tensor, 1))]
        if name.endswith(".conv1d.weight"):
            return [(name, self._with_tiled_values(tensor[:, 0]))]
        if name.endswith(".in_proj_qkv.weight"):
            return [(name, self._with_tiled_values(tensor))]
        if name.endswith(".in_proj_z.weight"):
            return [(name, self._tiled(tensor, self.value_dim))]
        if name.endswith((".in_proj_a.weight", ".in_proj_b.weight")):
            return [(name, self._tiled(tensor, 1))]
        if name.endswith("linear_attn.out_proj.weight"):
            return [(name, np.ascontiguousarray(self._tiled(tensor.T, self.value_dim).T))]
        if name.endswith(".in_proj_qkvz.weight") and not self._is_old:
            return self._split(name, tensor)
        if name.endswith("shared_expert_gate.weight"):
            return [(name, tensor[0])]
        return [(name, tensor)]

    def _split(self, name: str, tensor: Array) -> list[tuple[str, Array]]:
        values = self.heads // self.key_heads * self.value_dim
        by_head = tensor.reshape(self.key_heads, -1, tensor.shape[1])
        edges = np.cumsum([self.key_dim, self.key_dim, values])
        parts = [p.reshape(-1, tensor.shape[1]) for p in np.split(by_head, edges, axis=1)]
        return [
            (name.replace("qkvz", "qkv"), np.concatenate(parts[:3])),
            (name.replace("qkvz", "z"), parts[3]),
        ]

    def _tiled(self, rows: Array, size: int) -> Array:
        """Heads of `size` rows that share a key head take turns."""
        if self.architecture == NEXT:
            return rows
        by_head = rows.reshape(self.key_heads, -1, size, *rows.shape[1:])
        return np.ascontiguousarray(by_head.swapaxes(0, 1)).reshape(rows.shape)

    def _with_tiled_values(self, rows: Array) -> Array:
        first = 2 * self.key_heads * self.key_dim
        return np.concatenate([rows[:first], self._tiled(rows[first:], self.value_dim)])

    def _name(self, name: str) -> str:
        block = f"blk.{self.config['num_hidden_layers']}.nextn."
        for end in ("eh_proj", "enorm", "hnorm", "shared_head.norm"):
            if name.endswith(f".{end}.weight"):  # names that the package lacks
                return block + end.replace(".", "_") + ".weight"
        theirs = self._names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        return str(theirs)

    def add_shape(self, writer: GGUFWriter) -> None:
        config = self.config
        share = config["rope_parameters"]["partial_rotary_factor"]
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        num_pairs = int(config["head_dim"] * share) // 2
        writer.add_rope_dimension_count(2 * num_pairs)
        third = num_pairs // 3  # of an image's rows and of its columns; all alike in a text
        writer.add_rope_dimension_sections([num_pairs - 2 * third, third, third, 0])
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(self.key_dim)
        writer.add_ssm_group_count(self.key_heads)
        writer.add_ssm_time_step_rank(self.heads)
        writer.add_ssm_inner_size(self.heads * self.value_dim)
        if "intermediate_size" in config:
            writer.add_feed_forward_length(config["intermediate_size"])
        if "num_experts" in config:
            writer.add_expert_count(config["num_experts"])
            writer.add_expert_used_count(config["num_experts_per_tok"])
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
            shared = config["shared_expert_intermediate_size"]
            writer.add_expert_shared_feed_forward_length(shared)


class MambaConverter:
    """What becomes of the tensors of models with Mamba-2."""

    architecture = ""
    num_further = 0
    layer_tensor = ".mamba."

    def __init__(self, folder: Path) -> None:
        self.config = read_json(folder / "config.json")
        self._tensors: dict[str, Array] = load_file(folder / "model.safetensors")
        self.kinds: Any = self.config.get("layer_types", self.config.get("layers_block_type"))
        if self.kinds is not None:
            self.config["num_hidden_layers"] = len(self.kinds)
        num_layers = self.config["num_hidden_layers"]
        self._names = gguf.get_tensor_name_map(NUMBERS[self.architecture], num_layers)

    def tensors(self) -> dict[str, Array]:
        return {
            its_name: np.ascontiguousarray(its_tensor)
            for name, tensor in self._tensors.items()
            for its_name, its_tensor in self._converted(name, tensor)
        }

    def _converted(self, name: str, tensor: Array) -> list[tuple[str, Array]]:
        _, groups, _, _, _ = self.mamba()
        changed: dict[str, Callable[[], Array]] = {
            ".A_log": lambda: -np.exp(tensor)[:, None],
            ".D": lambda: tensor[:, None],
            ".conv1d.weight": lambda: tensor[:, 0],
            f"{self.layer_tensor}norm.weight": lambda: tensor.reshape(groups, -1),
        }
        for end, change in changed.items():
            if name.endswith(end):
                tensor = change()
                break
        name = name.replace(".mamba.dt_bias", ".mamba.dt_proj.bias")
        name = name.replace(".mixer.dt_bias", ".mixer.dt.bias")
        name = name.replace(".e_score_correction_bias", ".e_score_correction.bias")
        theirs = self._names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        return [(str(theirs), tensor)]

    def mamba(self) -> tuple[int, ...]:
        """Heads, groups, sizes of a head and of a state, and width of the convolution."""
        names = ("n_heads", "n_groups", "d_head", "d_state", "d_conv")
        return tuple(self.config[f"mamba_{name}"] for name in names)

    def add_shape(self, writer: GGUFWriter) -> None:
        heads, groups, size, state, width = self.mamba()
        writer.add_ssm_conv_kernel(width)
        writer.add_ssm_state_size(state)
        writer.add_ssm_group_count(groups)
        writer.add_ssm_time_step_rank(heads)
        writer.add_ssm_inner_size(heads * size)

    def _add_kv_heads(self, writer: GGUFWriter) -> None:
        """None in layers without attention."""
        heads = self.config["num_key_value_heads"]
        writer.add_head_count_kv([heads if kind == "full_attention" else 0 for kind in self.kinds])


class GraniteConverter(MambaConverter):
    architecture = "granitehybrid"

    def _converted(self, name: str, tensor: Array) -> list[tuple[str, Array]]:
        block = ".".join(["blk", *name.split(".")[2:3], ""])
        shared = "_shexp" if self.config["num_local_experts"] else ""
        if name.endswith("shared_mlp.input_linear.weight"):
            halves = zip(("gate", "up"), np.split(tensor, 2), strict=True)
            return [(f"{block}ffn_{kind}{shared}.weight", half) for kind, half in halves]
        if name.endswith("shared_mlp.output_linear.weight"):
            return [(f"{block}ffn_down{shared}.weight", tensor)]
        if name.endswith("block_sparse_moe.input_linear.weight"):
            halves = zip(("gate", "up"), np.split(tensor, 2, axis=1), strict=True)
            return [(f"{block}ffn_{kind}_exps.weight", half) for kind, half in halves]
        if name.endswith(".q_proj.weight"):
            tensor = side_by_side(tensor, self.config["num_attention_heads"])
        if name.endswith(".k_proj.weight"):
            tensor = side_by_side(tensor, self.config["num_key_value_heads"])
        return super()._converted(name, tensor)

    def add_shape(self, writer: GGUFWriter) -> None:
        super().add_shape(writer)
        config = self.config
        self._add_kv_heads(writer)
        writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
        writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
        if not config["num_local_experts"]:
            writer.add_feed_forward_length(config["shared_intermediate_size"])
            return
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])


class FalconConverter(MambaConverter):
    """All multipliers are in the weights."""

    architecture = "falcon-h1"

    def _converted(self, name: str, tensor: Array) -> list[tuple[str, Array]]:
        config = self.config
        attention_in = config["attention_in_multiplier"]
        heads, groups, size, state, _ = self.mamba()
        rows = (heads * size, heads * size, groups * state, groups * state, heads)
        own = {
            ".q_proj.weight": attention_in,
            ".k_proj.weight": attention_in * config["key_multiplier"],
            ".v_proj.weight": attention_in,
            ".o_proj.weight": config["attention_out_multiplier"],
            ".mamba.in_proj.weight": config["ssm_in_multiplier"]
            * np.repeat(config["ssm_multipliers"], rows)[:, None],
            ".mamba.out_proj.weight": config["ssm_out_multiplier"],
            ".gate_proj.weight": config["mlp_multipliers"][0],
            ".down_proj.weight": config["mlp_multipliers"][1],
            "embed_tokens.weight": config["embedding_multiplier"],
            "lm_head.weight": config["lm_head_multiplier"],
        }
        for end, factor in own.items():
            if name.endswith(end):
                tensor = (tensor * factor).astype(np.float32)
        return super()._converted(name, tensor)

    def add_shape(self, writer: GGUFWriter) -> None:
        super().add_shape(writer)
        config = self.config
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_feed_forward_length(config["intermediate_size"])


class NemotronConverter(MambaConverter):
    """Layers say by two lists what they are."""

    architecture = "nemotron_h_moe"
    layer_tensor = ".mixer."

    def tensors(self) -> dict[str, Array]:
        stacks: dict[str, dict[int, Array]] = {}
        for name in [name for name in self._tensors if ".experts." in name]:
            layer, _, rest = name.removeprefix("backbone.layers.").partition(".mixer.experts.")
            expert, kind, _ = rest.split(".", 2)
            its_name = f"blk.{layer}.ffn_{kind.removesuffix('_proj')}_exps.weight"
            stacks.setdefault(its_name, {})[int(expert)] = self._tensors.pop(name)
        stacked = {name: np.stack([s[i] for i in sorted(s)]) for name, s in stacks.items()}
        return super().tensors() | stacked

    def mamba(self) -> tuple[int, ...]:
        names = ("mamba_num_heads", "n_groups", "mamba_head_dim", "ssm_state_size", "conv_kernel")
        return tuple(self.config[name] for name in names)

    def add_shape(self, writer: GGUFWriter) -> None:
        super().add_shape(writer)
        config = self.config
        self._add_kv_heads(writer)
        widths = {"mlp": config["intermediate_size"], "moe": config["moe_intermediate_size"]}
        writer.add_feed_forward_length([widths.get(kind, 0) for kind in self.kinds])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        if "moe" not in self.kinds:
            return
        writer.add_expert_count(config["n_routed_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        shared = config["moe_shared_expert_intermediate_size"]
        writer.add_expert_shared_feed_forward_length(shared)
        if config.get("moe_latent_size"):
            writer.add_moe_latent_size(config["moe_latent_size"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])


OTHERS: Mapping[str, type[MambaConverter | KimiConverter]] = {
    "falcon_h1": FalconConverter,
    "granitemoehybrid": GraniteConverter,
    "kimi_linear": KimiConverter,
    "nemotron_h": NemotronConverter,
}


def side_by_side(rows: Array, num_heads: int) -> Array:
    """The rotary pairs of each head, which are half a head apart."""
    halves = rows.reshape(num_heads, 2, -1, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def write_hybrid_gguf(
    folder: Path, target: Path, type_name: str = "F32", *, is_old: bool = False
) -> Path:
    """`is_old`: projections of Qwen3-Next are as safetensors have them."""
    other = OTHERS.get(read_json(folder / "config.json")["model_type"])
    converter = Converter(folder, is_old) if other is None else other(folder)
    config = converter.config
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as draft:
        writer = GGUFWriter(draft, converter.architecture, use_temp_file=True)
        writer.add_vocab_size(config["vocab_size"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_block_count(config["num_hidden_layers"] + converter.num_further)
        if converter.num_further:
            key = f"{converter.architecture}.nextn_predict_layers"
            writer.add_uint32(key, converter.num_further)
        writer.add_head_count(config["num_attention_heads"])
        if "layer_norm_epsilon" in config:
            writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        else:
            writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        if "rope_parameters" in config:
            writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
        converter.add_shape(writer)
        add_vocabulary(writer, folder)
        for name, tensor in converter.tensors().items():
            kind = _kind(name, tensor, GGMLQuantizationType[type_name])
            data = quantize(np.ascontiguousarray(tensor, np.float32), kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return target


def _kind(name: str, tensor: Array, kind: GGMLQuantizationType) -> GGMLQuantizationType:
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    is_exact = name.endswith(("norm.weight", "conv1d.weight", "gate_inp.weight"))
    is_matrix = tensor.ndim > 1 and tensor.shape[-1] % block == 0 and tensor.shape[-1] > 1
    return kind if is_matrix and not is_exact else GGMLQuantizationType.F32
