"""GGUF's names of architectures and tensors, by Hugging Face's."""

import gguf

from inference_api.engine.loading.config import ModelConfig
from inference_api.engine.loading.layout import weight_plan
from inference_api.engine.loading.stacks import of_expert

# By `model_type` of a config.json. GGUF has no word for Mistral: its tensors are Llama's.
ARCHITECTURES = {
    "falcon": "falcon",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "glm4": "glm4",
    "gpt_oss": "gpt-oss",
    "granite": "granite",
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "smollm3": "smollm3",
}
_INTERLEAVED = ("glm4", "granite", "llama", "smollm3")
_SUFFIXES = (".weight", ".bias")
_BY_VALUE = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}


def gguf_names(architecture: str, config: ModelConfig) -> dict[str, str]:
    """Returns GGUF's names of the tensors of `weight_plan`, by their names there. Those of all
    experts of a layer share one: see `stacks`."""
    known = gguf.get_tensor_name_map(_BY_VALUE[architecture], config.num_layers)
    parts = [part for parts in weight_plan(config).values() for part in parts]
    names = {}
    for part in parts:
        single = of_expert(part.name)
        name = part.name if single is None else single.stack
        theirs = known.get_name(name, try_suffixes=_SUFFIXES) or part.name
        names[part.name] = theirs if theirs.endswith(_SUFFIXES) else f"{theirs}{_SUFFIXES[0]}"
    return names


def is_rope_interleaved(architecture: str, name: str) -> bool:
    """Whether the rows of tensor `name` (ours) have rotary pairs side by side.

    Ours are half a head apart, as Hugging Face stores them; see `rope`.
    """
    return architecture in _INTERLEAVED and (".q_proj." in name or ".k_proj." in name)
