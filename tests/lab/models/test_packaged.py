"""Real weights out of GGUF files, as folders that other programs read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from lab.models import packaged
from lab.models.gguf_file import make_gguf
from lab.models.random_model import SEED, write_tokenizer

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 512}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},  # its queries and keys are turned in GGUF
    "gemma3_text": {"query_pre_attn_scalar": 16},  # its norms have one added
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_out_of_a_gguf_file_has_the_weights_that_the_file_was_made_of(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(SEED)
    config = AutoConfig.for_model(kind, **SIZES, **HEADS, **KINDS[kind])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) / 8)
    model.save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model", SIZES["vocab_size"])
    make_gguf(tmp_path / "model", tmp_path / "model.gguf", "F32")
    monkeypatch.setitem(packaged.FILES, "made-up", lambda: tmp_path / "model.gguf")
    packaged.make_packaged("made-up", tmp_path / "again", context_tokens=777)

    again = load_file(tmp_path / "again" / "model.safetensors")
    expected = load_file(tmp_path / "model" / "model.safetensors")
    assert again.keys() == expected.keys()
    assert all(torch.equal(again[name], expected[name]) for name in again)
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype=torch.bfloat16)
    assert read.config.max_position_embeddings == 777
    ids = torch.arange(40)[None]
    assert torch.equal(read(ids).logits, model(ids).logits)
