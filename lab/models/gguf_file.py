"""Write a model folder as one GGUF file, for programs that read those.

    python -m lab.models.gguf_file models/hearth-tiny var/models/hearth-tiny.Q8_0.gguf --type Q8_0

The matrices get the type asked for, by the `gguf` package's own quantizers; norms and biases stay
float32. Beside the file only one tensor at a time is in memory. A tokenizer that is not one of the
kinds GGUF has names for is left out, which programs that are driven by token ids do not mind.
"""

import argparse
import math
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from common.files import whole_file
from inference_api.engine.rope import frequencies
from inference_api.kernels.interface import Floats
from inference_api.loading.checkpoint import load_config
from inference_api.loading.config import (
    LatentConfig,
    MixtureConfig,
    ModelConfig,
    RopeConfig,
    SwiGluConfig,
    TensorNames,
)
from inference_api.loading.families.layer_plan import SourceTensor
from inference_api.loading.files import (
    TensorLocation,
    opened,
    read_numbers,
    tensor_places,
    weight_files,
)
from inference_api.loading.gguf.config import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS
from inference_api.loading.gguf.names import ARCHITECTURES, gguf_names, row_order, squeezed
from inference_api.loading.layout import is_exact, weight_plan
from inference_api.loading.numbers import Numbers
from inference_api.loading.stacks import in_stack
from inference_api.loading.stream import converted
from lab.models.gguf_hybrids import write_hybrid_gguf
from lab.models.gguf_vocabulary import add_vocabulary, read_json

WITH_PATTERN = ("exaone4", "gemma3", "olmo2")  # a file says which layers have a window
# Those whose first layers may have no experts.
WITH_DENSE_LAYERS = ("deepseek2", "ernie4_5-moe", "glm4moe", "lfm2moe", "mistral4")
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "MXFP4")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a model folder as one GGUF file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--type", choices=TYPES, default="F16")
    arguments = parser.parse_args()
    make_gguf(arguments.folder, arguments.target, arguments.type)


def make_gguf(folder: Path, target: Path, type_name: str) -> None:
    """Raises StartupError when the folder holds no model of ours, ValueError for one that GGUF
    has no words for."""
    config = load_config(folder)
    raw = read_json(folder / "config.json")
    kind = GGMLQuantizationType[type_name]
    architecture = ARCHITECTURES[raw["model_type"]]
    if config.quantisation is not None:
        raise ValueError(f"{folder} is quantised; choose the checkpoint that it was made of")
    if config.recurrent is not None and config.recurrent.kind != "short_conv":
        write_hybrid_gguf(folder, target, type_name)
        return
    _check(folder, config, architecture)
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as draft:
        writer = GGUFWriter(draft, architecture)
        writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[type_name]])
        _add_shape(writer, config)
        add_vocabulary(writer, folder)
        _write_tensors(writer, folder, config, architecture, kind)
        writer.close()


def _check(folder: Path, config: ModelConfig, architecture: str) -> None:
    """Raises ValueError when the file could not say what the model is."""
    if config.shapes:
        raise ValueError(f"{folder}: layers of {architecture} have sizes of their own")
    activation = {"falcon": "gelu", "gemma3": "gelu_tanh"}.get(architecture, "silu")
    may_have_windows = architecture in (*WITH_PATTERN, "gpt-oss", "phi3")
    has_windows = any(config.windows) and not may_have_windows
    if has_windows or config.activation != activation:
        raise ValueError(
            f"{folder}: in GGUF {architecture} has no sliding windows, and {activation} for its "
            "activation"
        )
    all_turned = [True] * config.num_layers
    every_fourth = [(layer + 1) % 4 != 0 for layer in range(config.num_layers)]
    local = [window is not None for window in config.windows]
    turned_by = {"smollm3": every_fourth, "exaone4": local if any(local) else all_turned}
    turned = [rope is not None for rope in config.ropes]
    if turned != turned_by.get(architecture, all_turned):
        raise ValueError(f"{folder}: in GGUF other layers of {architecture} have rope")
    if architecture == "gemma3" and not math.isclose(config.attention_scale, config.head_dim**-0.5):
        raise ValueError(f"{folder}: in GGUF gemma3 has no query_pre_attn_scalar")
    _check_gpt_oss(folder, config)
    mixture = config.mixture
    if mixture is None:
        return
    if architecture in WITH_DENSE_LAYERS:
        _check_deepseek(folder, config, mixture)
    elif mixture.dense_layers or not mixture.is_renormalised:
        raise ValueError(
            f"{folder}: in GGUF all layers of {architecture} have experts, whose shares sum to one"
        )


def _check_deepseek(folder: Path, config: ModelConfig, mixture: MixtureConfig) -> None:
    if mixture.dense_layers != frozenset(range(len(mixture.dense_layers))):
        raise ValueError(f"{folder}: in GGUF only the first layers have no experts")
    if config.latent is not None and _main_rope(config).magnitude != 1.0:
        raise ValueError(f"{folder}: in GGUF mscale is mscale_all_dim")


def _check_gpt_oss(folder: Path, config: ModelConfig) -> None:
    if config.swiglu is None:
        return
    are_local = [window is not None for window in config.windows]
    if config.swiglu != SwiGluConfig(limit=7.0, alpha=1.702) or are_local != [
        layer % 2 == 0 for layer in range(config.num_layers)
    ]:
        raise ValueError(
            f"{folder}: in GGUF gpt-oss has swiglu_limit=7.0, swiglu_alpha=1.702 and a window in "
            "every other layer"
        )


_FILE_TYPES = {
    "F32": "ALL_F32",
    "F16": "MOSTLY_F16",
    "BF16": "MOSTLY_BF16",
    "Q8_0": "MOSTLY_Q8_0",
    "Q4_0": "MOSTLY_Q4_0",
    "MXFP4": "MOSTLY_MXFP4_MOE",
}


def _add_shape(writer: GGUFWriter, config: ModelConfig) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.ffn_size)
    writer.add_head_count(config.num_heads)
    if config.recurrent is None:
        writer.add_head_count_kv(config.num_kv_heads)
    else:
        are_recurrent = map(config.recurrent_of, range(config.num_layers))
        writer.add_head_count_kv([0 if each else config.num_kv_heads for each in are_recurrent])
        writer.add_shortconv_l_cache(config.recurrent.conv_width)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.value_dim)
    _add_rope(writer, config)
    if config.mixture is not None:
        _add_mixture(writer, config.mixture)
    if config.latent is not None:
        _add_latent(writer, config, config.latent)
    if config.norm == "rms":
        writer.add_layer_norm_rms_eps(config.norm_eps)
    else:
        writer.add_layer_norm_eps(config.norm_eps)
    if config.logits_softcap is not None:
        writer.add_final_logit_softcapping(config.logits_softcap)
    if writer.arch == "granite":
        writer.add_attention_scale(config.attention_scale)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_divisor)


def _add_mixture(writer: GGUFWriter, mixture: MixtureConfig) -> None:
    writer.add_expert_count(mixture.num_experts)
    writer.add_expert_used_count(mixture.experts_per_token)
    writer.add_expert_feed_forward_length(mixture.ffn_size)
    if writer.arch not in WITH_DENSE_LAYERS:
        return
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType[mixture.scoring.upper()])
    writer.add_expert_shared_count(mixture.shared_ffn_size // mixture.ffn_size)
    writer.add_expert_weights_norm(mixture.is_renormalised)
    writer.add_expert_weights_scale(mixture.scale)
    writer.add_leading_dense_block_count(len(mixture.dense_layers))
    if mixture.groups is not None:
        writer.add_expert_group_count(mixture.groups.num_groups)
        writer.add_expert_group_used_count(mixture.groups.groups_per_token)


def _add_latent(writer: GGUFWriter, config: ModelConfig, latent: LatentConfig) -> None:
    if latent.query_rank is not None:
        writer.add_q_lora_rank(latent.query_rank)
    writer.add_kv_lora_rank(latent.kv_rank)
    rope = _main_rope(config)
    if rope.kind == "yarn" and rope.factor > 1:
        magnitude = math.sqrt(config.attention_scale * math.sqrt(config.head_dim))
        writer.add_rope_scaling_yarn_log_mul((magnitude - 1) / math.log(rope.factor))


def _add_rope(writer: GGUFWriter, config: ModelConfig) -> None:
    rope = _main_rope(config)
    writer.add_rope_dimension_count(config.rotary_dim)
    writer.add_rope_freq_base(rope.theta)
    if rope.kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope.factor)
    if rope.kind == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope.original_max_positions)
        writer.add_rope_scaling_attn_factors(rope.magnitude)
    if rope.query_growth:
        growth = f"{writer.arch}.attention.temperature_scale"
        writer.add_float32(growth, rope.query_growth)
        if config.latent is None:
            writer.add_rope_scaling_yarn_log_mul(1.0)  # its mscale_all_dim: turns keep lengths
    if rope.kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope.factor)
        writer.add_rope_scaling_orig_ctx_len(rope.original_max_positions)
    windows = {window for window in config.windows if window is not None}
    for window in windows:
        writer.add_sliding_window(window)
    if writer.arch in WITH_PATTERN and windows:
        writer.add_sliding_window_pattern([window is not None for window in config.windows])
    if writer.arch == "gemma3" and windows:
        local = config.ropes[config.windows.index(*windows)]
        assert local is not None
        writer.add_rope_freq_base_swa(local.theta)


def _main_rope(config: ModelConfig) -> RopeConfig:
    """That of layers which see everything, where others have another."""
    layers = zip(config.ropes, config.windows, strict=True)
    ropes = [(window is not None, rope) for rope, window in layers if rope is not None]
    return min(ropes, key=itemgetter(0), default=(False, RopeConfig()))[1]


def _write_tensors(
    writer: GGUFWriter,
    folder: Path,
    config: ModelConfig,
    architecture: str,
    kind: GGMLQuantizationType,
) -> None:
    names = gguf_names(architecture, config)
    exact = GGMLQuantizationType.F32
    kinds: dict[SourceTensor, GGMLQuantizationType] = {}
    stacks: dict[str, list[SourceTensor]] = {}  # by GGUF's name
    for ours, parts in weight_plan(config).items():
        for part in parts:
            kinds[part] = kind if len(part.shape) == 2 and not is_exact(ours) else exact
            stacks.setdefault(names[part.name], []).append(part)
    for name, stack in stacks.items():
        first = stack[0]
        block, block_bytes = gguf.GGML_QUANT_SIZES[kinds[first]]
        is_single, shape = in_stack(first.name) is None, squeezed(first.shape)
        shape = shape if is_single else (len(stack), *shape)
        num_bytes = int(np.prod(shape)) // block * block_bytes
        writer.add_tensor_info(name, shape, np.dtype(np.float32), num_bytes, kinds[first])
    factors = _rope_factors(config)
    for name, numbers in factors.items():
        writer.add_tensor_info(name, numbers.shape, numbers.dtype, numbers.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    read = _reader(folder, config.tensor_names)
    for stack in stacks.values():
        written = []
        for part in stack:
            numbers = converted(read(part.name), part).floats()
            theirs = _as_gguf(numbers, part, config, architecture)
            written.append(gguf.quants.quantize(theirs, kinds[part]))
        writer.write_tensor_data(np.concatenate(written))
    for numbers in factors.values():
        writer.write_tensor_data(numbers)


def _reader(folder: Path, names: TensorNames) -> Callable[[str], Numbers]:
    homes: dict[str, tuple[Path, TensorLocation]] = {}
    for file in weight_files(folder):
        homes |= {name: (file, place) for name, place in tensor_places(file, names).items()}

    def read(name: str) -> Numbers:
        file, place = homes[name]
        with opened(file) as stream:
            return read_numbers(stream, name, place)

    return read


def _as_gguf(numbers: Floats, part: SourceTensor, config: ModelConfig, architecture: str) -> Floats:
    order = row_order(architecture, part, config)
    if not order:
        return numbers
    heads = numbers.reshape(-1, len(order), *numbers.shape[1:])
    return heads[:, np.argsort(order)].reshape(numbers.shape)


def _rope_factors(config: ModelConfig) -> dict[str, NDArray[np.float32]]:
    """By how much a scaling slows each pair of dimensions, where GGUF stores the outcome."""
    rope = _main_rope(config)
    if rope.kind == "longrope":
        both = {LONG_FACTORS: rope.long_factors, SHORT_FACTORS: rope.short_factors}
        return {name: np.asarray(factors, np.float32) for name, factors in both.items()}
    if rope.kind != "llama3":
        return {}
    unscaled = frequencies(RopeConfig(theta=rope.theta), config.rotary_dim, config.max_positions)
    factors = unscaled / frequencies(rope, config.rotary_dim, config.max_positions)
    return {ROPE_FACTORS: np.asarray(factors, np.float32)}


if __name__ == "__main__":
    main()
