"""Make a Llama or a mixture of experts of random weights, to measure speed with: it says nothing.

    python -m lab.models.random_model 110m var/models/random-110m

Every byte of a prompt is one token, and every token that comes out is visible text, so that a
client can count both.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from common.files import whole_file, write_whole
from inference_api.loading.gguf.tokenizer import PRE_TOKENIZERS

CONTEXT_TOKENS = 2048
SEED = 20240229
INIT_STD = 0.02
ABSENT_BYTES = ("\u00fe", "\u00ff")  # of UTF-8, as byte-level tokenizers write them


@dataclass(frozen=True, slots=True)
class Shape:
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    vocab_size: int = 32_000
    head_dim: int | None = None  # None: the heads share `hidden`
    num_experts: int = 0  # of `ffn` each, in every layer; then it is a Qwen3-MoE
    experts_per_token: int = 0
    context_tokens: int = CONTEXT_TOKENS

    @property
    def head_width(self) -> int:
        return self.head_dim or self.hidden // self.heads


SHAPES = {
    "tiny": Shape(hidden=64, ffn=128, layers=2, heads=2, kv_heads=2, vocab_size=512),
    "110m": Shape(hidden=768, ffn=2048, layers=12, heads=12, kv_heads=12),
    "1.1b": Shape(hidden=2048, ffn=5632, layers=22, heads=32, kv_heads=4),  # TinyLlama's
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a Llama of random weights.")
    parser.add_argument("size", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    make_random_model(SHAPES[arguments.size], arguments.folder)


def make_random_model(shape: Shape, folder: Path, chat_template: str | None = None) -> None:
    """Write config, tokenizer and bfloat16 weights; the same bytes every time."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "config.json", json.dumps(config_of(shape), indent=1))
    write_tokenizer(folder, shape.vocab_size)
    if chat_template is not None:
        write_whole(folder / "chat_template.jinja", chat_template)
    with whole_file(folder / "model.safetensors") as draft:
        save_file(_weights(shape), draft, metadata={"format": "pt"})


def config_of(shape: Shape) -> dict[str, object]:
    mixture: dict[str, object] = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": shape.num_experts,
        "num_experts_per_tok": shape.experts_per_token,
        "moe_intermediate_size": shape.ffn,
        "norm_topk_prob": True,
    }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "max_position_embeddings": shape.context_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": shape.vocab_size - 1,
        "torch_dtype": "bfloat16",
        **(mixture if shape.num_experts else {}),
    }


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """`byte_tokenizer`, in words that GGUF has a name for."""
    tokenizer = json.loads(byte_tokenizer(vocab_size).to_str())
    tokenizer["pre_tokenizer"] = PRE_TOKENIZERS["gpt-2"]
    write_whole(folder / "tokenizer.json", json.dumps(tokenizer, indent=1))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    write_whole(folder / "tokenizer_config.json", json.dumps(names))


def byte_tokenizer(vocab_size: int) -> Tokenizer:
    """The 256 bytes, then words that no text contains, then the end token. The first word is of
    two bytes that are in no text: GGUF has no tokenizer without merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"<{number}>" for number in range(len(alphabet) + 1, vocab_size - 1)]
    tokens = [*alphabet, "".join(ABSENT_BYTES), *words, "</s>"]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, merges=[ABSENT_BYTES]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def _weights(shape: Shape) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED)

    def random(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * INIT_STD).bfloat16()

    width, kv_width = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    norm = torch.ones(shape.hidden, dtype=torch.bfloat16)
    weights = {
        "model.embed_tokens.weight": random(shape.vocab_size, shape.hidden),
        "model.norm.weight": norm.clone(),
        "lm_head.weight": random(shape.vocab_size, shape.hidden),
    }
    for number in range(shape.layers):
        layer = f"model.layers.{number}"
        weights |= {
            f"{layer}.input_layernorm.weight": norm.clone(),
            f"{layer}.post_attention_layernorm.weight": norm.clone(),
            f"{layer}.self_attn.q_proj.weight": random(width, shape.hidden),
            f"{layer}.self_attn.k_proj.weight": random(kv_width, shape.hidden),
            f"{layer}.self_attn.v_proj.weight": random(kv_width, shape.hidden),
            f"{layer}.self_attn.o_proj.weight": random(shape.hidden, width),
        }
        mlps = [f"{layer}.mlp"]
        if shape.num_experts:
            mlps = [f"{layer}.mlp.experts.{expert}" for expert in range(shape.num_experts)]
            head_norm = torch.ones(shape.head_width, dtype=torch.bfloat16)
            weights |= {
                f"{layer}.mlp.gate.weight": random(shape.num_experts, shape.hidden),
                f"{layer}.self_attn.q_norm.weight": head_norm.clone(),
                f"{layer}.self_attn.k_norm.weight": head_norm.clone(),
            }
        for mlp in mlps:
            weights |= {
                f"{mlp}.gate_proj.weight": random(shape.ffn, shape.hidden),
                f"{mlp}.up_proj.weight": random(shape.ffn, shape.hidden),
                f"{mlp}.down_proj.weight": random(shape.hidden, shape.ffn),
            }
    return weights


if __name__ == "__main__":
    main()
