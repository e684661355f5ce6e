"""Models with recurrent layers in published shapes, of random weights: to measure speed with.

    python -m lab.models.random_hybrid qwen3.5-0.8b var/models/qwen3.5-0.8b

The layers of the largest are left out but for a few, as its name says.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from common.files import whole_file, write_whole
from lab.models.random_model import INIT_STD, SEED, write_tokenizer

CONTEXT_TOKENS = 32_768
LFM2_ATTENTION = (2, 5, 8, 10, 12, 14)
GRANITE_ATTENTION = (5, 15, 25, 35)
QWEN = {"vocab_size": 248_320, "head_dim": 256, "num_key_value_heads": 2}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3.5-0.8b": {
        **QWEN,
        "model_type": "qwen3_5_text",
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "linear_num_value_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3.5-4b": {
        **QWEN,
        "model_type": "qwen3_5_text",
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "linear_num_value_heads": 32,
        "tie_word_embeddings": True,
    },
    "lfm2-1.2b": {
        "model_type": "lfm2",
        "vocab_size": 65_536,
        "hidden_size": 2048,
        "intermediate_size": 12_288,  # 8,192, as the config's class adjusts it
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "layer_types": [
            "full_attention" if layer in LFM2_ATTENTION else "conv" for layer in range(16)
        ],
    },
    "granite-4.0-h-micro": {
        "model_type": "granitemoehybrid",
        "vocab_size": 100_352,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "shared_intermediate_size": 8192,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "mamba_n_heads": 64,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "position_embedding_type": "nope",
        "tie_word_embeddings": True,
        "layer_types": [
            "full_attention" if layer in GRANITE_ATTENTION else "linear_attention"
            for layer in range(40)
        ],
    },
    "qwen3.6-35b-a3b-4-layers": {
        **QWEN,
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "linear_num_value_heads": 32,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a hybrid model of random weights.")
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    make_random_hybrid(arguments.name, arguments.folder)


def make_random_hybrid(name: str, folder: Path) -> None:
    """Write config, tokenizer and float16 weights; the same bytes every time."""
    shape = SHAPES[name] | {"max_position_embeddings": CONTEXT_TOKENS, "dtype": "float16"}
    config = AutoConfig.for_model(**shape, eos_token_id=SHAPES[name]["vocab_size"] - 1)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "config.json", json.dumps(config.to_dict(), indent=1, default=str))
    write_tokenizer(folder, config.vocab_size)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    generator = torch.Generator().manual_seed(SEED)
    weights = {
        name: _random(name, tensor.shape, generator)
        for name, tensor in model.state_dict().items()
        if name not in tied
    }
    with whole_file(folder / "model.safetensors") as draft:
        save_file(weights, draft, metadata={"format": "pt"})


def _random(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    if len(shape) == 1:
        is_one = name.endswith(("norm.weight", ".D"))
        return torch.full(shape, float(is_one), dtype=torch.float16)
    return torch.randn(shape, generator=generator).mul_(INIT_STD).half()


if __name__ == "__main__":
    main()
