"""Maps Hugging Face's names of architectures and tensors to GGUF's."""

from collections.abc import Container, Sequence

import gguf

from inference_api.loading.config import ModelConfig
from inference_api.loading.families.layer_plan import SourceTensor, rotary_order
from inference_api.loading.families.read import READERS
from inference_api.loading.families.tensor_names import SCHEMES
from inference_api.loading.layout import weight_plan
from inference_api.loading.stacks import in_stack

_NAMES = {  # GGUF's names of families, where they differ from `model_type` without its end
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "ernie4_5_moe": "ernie4_5-moe",
    "falcon_h1": "falcon-h1",
    "glm4_moe": "glm4moe",
    "glm4_moe_lite": "deepseek2",
    "gpt_oss": "gpt-oss",
    "granitemoehybrid": "granitehybrid",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe",
    "kimi_linear": "kimi-linear",
    "lfm2_moe": "lfm2moe",
    "ministral3": "mistral3",
    "mistral": "llama",
    "mixtral": "llama",
    "olmo3": "olmo2",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next",
}
_UNKNOWN = ("olmo_hybrid",)  # families that GGUF does not have
ARCHITECTURES = {  # keys: values of `model_type`
    kind: _NAMES.get(text, text)
    for kind in READERS
    for text in [kind.removesuffix("_text").removesuffix("_unified")]
    if kind not in _UNKNOWN
}
ALSO_NAMED = {"nemotron_h": "nemotron_h_moe"}  # architectures with a second name
KNOWN_ARCHITECTURES = frozenset({*ARCHITECTURES.values(), *ALSO_NAMED.values()})
_INTERLEAVED = (
    *("ernie4_5", "ernie4_5-moe", "glm4", "granite", "granitehybrid", "llama", "mistral3"),
    "smollm3",
)
_SUFFIXES = (".weight", ".bias", ".scale")
_KNOWN_ENDS = {  # ends of names that the package knows, by ends in safetensors
    ".mixer.dt_bias": ".mixer.dt.bias",
    "e_score_correction_bias": "e_score_correction.bias",
    ".dt_bias": ".dt_proj.bias",
    ".expert_bias": ".expert_bias.bias",
    ".feed_forward.experts.w1.weight": ".feed_forward.experts.gate_proj.weight",
    ".feed_forward.experts.w2.weight": ".feed_forward.experts.down_proj.weight",
    ".feed_forward.experts.w3.weight": ".feed_forward.experts.up_proj.weight",
    ".router.scale": ".router.proj.scale",
    ".router.per_expert_scale": ".experts.down_proj.scale",
}
FUSED = ".ffn_gate_up_exps."  # the experts' gate and up projections in one stack
_WITHOUT_SUFFIX = (".ffn_norm", ".ssm_a", ".ssm_d")
# Architectures with the row order of safetensors.
_ORDERED = ("deepseek2", "kimi-linear", "mistral4", "qwen3next", "qwen35", "qwen35moe")
_BY_VALUE = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}


def gguf_names(
    architecture: str, config: ModelConfig, tensors: Container[str] = ()
) -> dict[str, str]:
    """Returns GGUF's names of the tensors of `weight_plan`, by their names there. All experts of a
    layer share a name: see `stacks`. `tensors` are the names in a file, which show whether it has
    `FUSED` stacks."""
    num_layers = config.num_layers + config.has_mtp
    name_map = gguf.get_tensor_name_map(_BY_VALUE[architecture], num_layers)
    nextn = _nextn(config) if config.has_mtp else {}
    parts = [part for parts in weight_plan(config).values() for part in parts]
    names = {}
    for part in parts:
        single = in_stack(part.name)
        name = part.name if single is None else single.stack
        for prefix, gguf_prefix in nextn.items():
            if name.startswith(f"{prefix}."):
                name = gguf_prefix + name.removeprefix(prefix)
                break
        if ".mixer.experts." in name:
            name = name.replace("backbone.", "model.", 1).replace(".mixer.", ".mlp.", 1)
        for end, known_end in _KNOWN_ENDS.items():
            if name.endswith(end):
                name = name.removesuffix(end) + known_end
        gguf_name = name_map.get_name(name, try_suffixes=_SUFFIXES)
        if gguf_name is None and single is not None:
            gguf_name = _of_fused(name_map, name, tensors)
        gguf_name = gguf_name or name
        is_whole = gguf_name.endswith((*_SUFFIXES, *_WITHOUT_SUFFIX))
        names[part.name] = gguf_name if is_whole else f"{gguf_name}{_SUFFIXES[0]}"
    return names


def _nextn(config: ModelConfig) -> dict[str, str]:
    """Returns GGUF's prefixes of the layer that guesses further tokens, by ours. It counts as one
    more layer; the tensors around it have names that the package knows for few families."""
    mtp = SCHEMES[config.tensor_names].mtp
    assert mtp is not None
    layer, *around = mtp.behind(config.num_layers)
    names = ("eh_proj", "enorm", "hnorm", "shared_head_norm")
    prefixes = [f"blk.{config.num_layers}.nextn.{name}" for name in names]
    return dict(zip(around, prefixes, strict=True)) | {layer: f"model.layers.{config.num_layers}"}


def _of_fused(name_map: gguf.TensorNameMap, name: str, tensors: Container[str]) -> str | None:
    kind = "gate" if ".gate_proj." in name else "up"
    fused: str | None = name_map.get_name(
        name.replace(f".{kind}_proj.", ".gate_up_proj."), try_suffixes=_SUFFIXES
    )
    if fused is None or fused in tensors:
        return fused
    return fused.replace(FUSED, f".ffn_{kind}_exps.")


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape without dimensions of size 1, because files leave out or add some, as for
    convolutions of single channels."""
    return tuple(size for size in shape if size != 1)


def halves_of(name: str) -> tuple[str, ...]:
    """Returns the two tensors that newer files have instead of this one; empty for most."""
    keys_and_values = ".attn_kv_b."
    if keys_and_values not in name:
        return ()
    return tuple(name.replace(keys_and_values, f".attn_{half}_b.") for half in "kv")


def row_order(architecture: str, part: SourceTensor, config: ModelConfig) -> Sequence[int]:
    """Returns for each of our rows of a head its index in GGUF; empty if the orders are the same.

    Our rotary pairs are half a head apart, as in most Hugging Face checkpoints (see `rope`). In
    some architectures of GGUF they are side by side.
    """
    if architecture in _ORDERED:
        return part.head_order
    is_turned = ".q_proj." in part.name or ".k_proj." in part.name
    return rotary_order(config) if architecture in _INTERLEAVED and is_turned else ()
