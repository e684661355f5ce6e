"""Writes the trained model in the Hugging Face layout, so that plain `transformers` loads it."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from common.files import whole_file, write_whole

from .documents import ASSISTANT, BOS, EOS, PAD, SPECIAL_TOKENS, SYSTEM, USER, Corpus, render
from .model import ModelShape
from .wordings import DATA_DIR

_HELD_OUT_BYTES = 80_000
_HELD_OUT_SEED_OFFSET = 1000  # other documents than those of the validation loss


def export(work: Path, model_dir: Path) -> None:
    model_dir.mkdir(parents=True, exist_ok=True)
    checkpoint: dict[str, Any] = torch.load(work / "checkpoint.pt")
    weights = {name: w.to(torch.bfloat16).contiguous() for name, w in checkpoint["model"].items()}
    with whole_file(model_dir / "model.safetensors") as draft:
        save_file(weights, draft, metadata={"format": "pt"})
        draft.chmod(0o644)
    shutil.copyfile(work / "tokenizer.json", model_dir / "tokenizer.json")
    _write_json(model_dir / "config.json", _config(ModelShape(**checkpoint["shape"])))
    _write_json(model_dir / "generation_config.json", _token_ids())
    _write_json(model_dir / "tokenizer_config.json", _tokenizer_config())


def held_out_text(seed: int) -> str:
    """Plain text in wordings that training never sees, to measure perplexity on."""
    corpus = Corpus(seed + _HELD_OUT_SEED_OFFSET, held_out=True)
    markup = (*SPECIAL_TOKENS, "\n\n\n")
    text = ""
    while len(text) < _HELD_OUT_BYTES:
        for document in corpus.documents(50):
            plain = render(document)
            for mark in markup:
                plain = plain.replace(mark, "")
            text += plain.strip() + "\n\n"
    return text


def _token_ids() -> dict[str, Any]:
    return {
        "bos_token_id": SPECIAL_TOKENS.index(BOS),
        "eos_token_id": SPECIAL_TOKENS.index(EOS),
        "pad_token_id": SPECIAL_TOKENS.index(PAD),
    }


def _config(shape: ModelShape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    } | _token_ids()


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "additional_special_tokens": [USER, ASSISTANT, SYSTEM],
        "model_max_length": ModelShape().max_positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": (DATA_DIR / "chat_template.jinja").read_text(encoding="utf-8"),
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2) + "\n")
