"""GGUF's names of architectures and tensors, by Hugging Face's."""

import gguf

from inference_api.engine.loading.config import ModelConfig
from inference_api.engine.loading.layout import weight_plan

# By `model_type` of a config.json. GGUF has no word for Mistral: its tensors are Llama's.
ARCHITECTURES = {
    "falcon": "falcon",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "glm4": "glm4",
    "granite": "granite",
    "llama": "llama",
    "mistral": "llama",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "smollm3": "smollm3",
}
_INTERLEAVED = ("glm4", "granite", "llama", "smollm3")
_SUFFIXES = (".weight", ".bias")
_BY_VALUE = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}


def gguf_names(architecture: str, config: ModelConfig) -> dict[str, str]:
    """Returns GGUF's names of the tensors of `weight_plan`, by their names there."""
    known = gguf.get_tensor_name_map(_BY_VALUE[architecture], config.num_layers)
    parts = [part for parts in weight_plan(config).values() for part in parts]
    names = {part.name: known.get_name(part.name, try_suffixes=_SUFFIXES) for part in parts}
    return {name: theirs or name for name, theirs in names.items()}


def is_rope_interleaved(architecture: str, name: str) -> bool:
    """Whether the rows of tensor `name` (ours) have rotary pairs side by side.

    Ours are half a head apart, as Hugging Face stores them; see `rope`.
    """
    return architecture in _INTERLEAVED and (".q_proj." in name or ".k_proj." in name)
