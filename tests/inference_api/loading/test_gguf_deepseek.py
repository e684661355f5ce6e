"""What files of DeepSeek's and GLM-4.5's have otherwise than `make_gguf` writes it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from tokenizers import Tokenizer

from inference_api.errors import StartupError
from inference_api.loading import checkpoint
from inference_api.loading.gguf.files import read_gguf
from inference_api.loading.gguf.tokenizer import PRE_TOKENIZERS
from lab.models.gguf_file import make_gguf
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.tiny_models import DEEPSEEK
from tests.inference_api.loading.gguf_copies import Metadata, rewritten
from tests.inference_api.parameters import numbers_of

Tensors = dict[str, Any]
F32 = GGMLQuantizationType.F32
HEADS, RANK, ROTARY_DIM, UNTURNED, VALUE_DIM = (
    DEEPSEEK[name]
    for name in (
        "num_attention_heads",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "qk_nope_head_dim",
        "v_head_dim",
    )
)


def halved(tensors: Tensors) -> None:
    """As llama.cpp's converter writes it since it caches latents."""
    for name in [name for name in tensors if ".attn_kv_b." in name]:
        data, _ = tensors.pop(name)
        keys, values = np.split(data.reshape(HEADS, UNTURNED + VALUE_DIM, RANK), [UNTURNED], axis=1)
        transposed = np.ascontiguousarray(keys.transpose(0, 2, 1))
        tensors[name.replace("kv_b", "k_b")] = (transposed, F32)
        tensors[name.replace("kv_b", "v_b")] = (np.ascontiguousarray(values), F32)


def of_latents(metadata: Metadata) -> None:
    metadata["deepseek2.attention.head_count_kv"] = 1
    metadata["deepseek2.attention.key_length"] = RANK + ROTARY_DIM
    metadata["deepseek2.attention.value_length"] = RANK
    metadata["deepseek2.attention.key_length_mla"] = UNTURNED + ROTARY_DIM
    metadata["deepseek2.attention.value_length_mla"] = VALUE_DIM


def assert_same(one: Path, other: Path) -> None:
    tensors, others = numbers_of(one), numbers_of(other)
    assert checkpoint.load_config(one) == checkpoint.load_config(other)
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)


@pytest.fixture
def deepseek(tiny_model: Tiny, tmp_path: Path) -> Path:
    file = tmp_path / "deepseek.gguf"
    make_gguf(tiny_model("deepseek-v2"), file, "F32")
    return file


def test_keys_and_values_in_two_tensors_are_the_same(deepseek: Path, tmp_path: Path) -> None:
    other = rewritten(deepseek, tmp_path / "halves.gguf", of_latents, halved)
    assert read_gguf(other).stored.keys() == read_gguf(deepseek).stored.keys()
    assert_same(other, deepseek)


def test_one_half_alone_is_refused(deepseek: Path, tmp_path: Path) -> None:
    def without_values(tensors: Tensors) -> None:
        halved(tensors)
        del tensors["blk.0.attn_v_b.weight"]

    other = rewritten(deepseek, tmp_path / "half.gguf", of_latents, without_values)
    with pytest.raises(StartupError, match=r"lacks the tensors blk.0.attn_kv_b.weight;"):
        read_gguf(other)


def test_halves_of_another_shape_are_refused(deepseek: Path, tmp_path: Path) -> None:
    def untransposed(tensors: Tensors) -> None:
        halved(tensors)
        data, _ = tensors["blk.1.attn_k_b.weight"]
        turned = np.ascontiguousarray(data.transpose(0, 2, 1))
        tensors["blk.1.attn_k_b.weight"] = (turned, F32)

    other = rewritten(deepseek, tmp_path / "turned.gguf", of_latents, untransposed)
    with pytest.raises(StartupError, match=r"do not fit: blk.1.attn_k_b.weight is"):
        read_gguf(other)


def test_half_that_is_no_number_is_refused(deepseek: Path, tmp_path: Path) -> None:
    def infinite(tensors: Tensors) -> None:
        halved(tensors)
        data, _ = tensors["blk.1.attn_v_b.weight"]
        tensors["blk.1.attn_v_b.weight"] = (np.full_like(data, np.inf), F32)

    other = rewritten(deepseek, tmp_path / "infinite.gguf", of_latents, infinite)
    with pytest.raises(StartupError, match="not finite"):
        numbers_of(other)


@pytest.mark.parametrize("gating", [3, 4])
def test_scores_of_another_kind_are_refused(gating: int, deepseek: Path, tmp_path: Path) -> None:
    def otherwise(metadata: Metadata) -> None:
        metadata["deepseek2.expert_gating_func"] = gating

    with pytest.raises(StartupError, match=f"expert_gating_func {gating}"):
        read_gguf(rewritten(deepseek, tmp_path / "other.gguf", otherwise))


def test_older_file_that_does_not_say_how_it_scores_is_v2(deepseek: Path, tmp_path: Path) -> None:
    def silent(metadata: Metadata) -> None:
        del metadata["deepseek2.expert_gating_func"]

    assert_same(rewritten(deepseek, tmp_path / "older.gguf", silent), deepseek)


def test_layers_that_predict_further_tokens_are_left_out(tiny_model: Tiny, tmp_path: Path) -> None:
    file = tmp_path / "glm.gguf"
    make_gguf(tiny_model("glm4-moe"), file, "F32")

    def longer(metadata: Metadata) -> None:
        metadata["glm4moe.block_count"] += 1
        metadata["glm4moe.nextn_predict_layers"] = 1

    def more(tensors: Tensors) -> None:
        last = {name: tensor for name, tensor in tensors.items() if name.startswith("blk.1.")}
        tensors |= {name.replace("blk.1.", "blk.2."): tensor for name, tensor in last.items()}
        tensors["blk.2.nextn.enorm.weight"] = tensors["blk.1.attn_norm.weight"]

    assert_same(rewritten(file, tmp_path / "more.gguf", longer, more), file)


def words_of(name: str, text: str) -> list[str]:
    description = {"model": {"type": "BPE", "vocab": {}, "merges": []}}
    tokenizer = Tokenizer.from_str(
        json.dumps(description | {"pre_tokenizer": PRE_TOKENIZERS[name]})
    )
    cut = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [text[begin:end] for _, (begin, end) in cut]


# DeepSeek's compared with llama.cpp's.
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "deepseek-llm",
            ["Don", "'", "t", " say", " (", "1", "2", "3", "4", ")", " ", "你好", "\n", "ა"],
        ),
        ("deepseek-v3", ["Don", "'t", " say", " (", "123", "4", ")", " ", "你好", "\n", "ა"]),
        ("lfm2", ["Don", "'t", " say", " (", "123", "4", ")", " 你好", "\n", "ა"]),
        ("qwen35", ["Don", "'t", " say", " (", "1", "2", "3", "4", ")", " 你好", "\n", "ა"]),
        ("kimi-k2", ["Don't", " say", " (", "123", "4", ")", " ", "你好", "\n", "ა"]),
        ("tekken", ["Don", "'t", " say", " (", "1", "2", "3", "4", ")", " 你好", "\n", "ა"]),
    ],
)
def test_text_is_cut_into_words_as_the_models_were_trained(name: str, words: list[str]) -> None:
    assert words_of(name, "Don't say (1234) 你好\nა") == words


# A mark belongs to its letter, or is none; capitals begin a word, or do not.
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("qwen2", ["ह", "िन", "्द", "ी", " aBc"]),
        ("qwen35", ["हिन्दी", " aBc"]),
        ("tekken", ["हिन्दी", " a", "Bc"]),
        ("kimi-k2", ["हिन्दी", " a", "Bc"]),
    ],
)
def test_marks_and_capitals_are_cut_as_each_has_it(name: str, words: list[str]) -> None:
    assert words_of(name, "हिन्दी aBc") == words
