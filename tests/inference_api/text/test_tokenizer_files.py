"""Tokenizers of model folders, against transformers' own of the same files."""

import json
import os
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, TokenizersBackend

from inference_api.errors import StartupError
from inference_api.loading.gguf.tokenizer import PRE_TOKENIZERS, tokenizer_json
from inference_api.loading.tokenizer_files import MAX_TEMPLATE_BYTES
from inference_api.settings.model import EMBEDDED_MODEL
from inference_api.text.tokenizer_config import read_tokenizer
from inference_api.text.tokens import HuggingFaceTokenizer, load_tokenizer
from tests.inference_api.sentence_pieces import METADATA

EMBEDDED: dict[str, Any] = json.loads((EMBEDDED_MODEL / "tokenizer.json").read_text())
PIECES = tokenizer_json(METADATA)
FILES = {
    "embedded": EMBEDDED,
    "gpt2": EMBEDDED | {"normalizer": None, "pre_tokenizer": PRE_TOKENIZERS["gpt-2"]},
    "smollm": EMBEDDED | {"normalizer": None, "pre_tokenizer": PRE_TOKENIZERS["smollm"]},
    "qwen2": EMBEDDED | {"normalizer": {"type": "NFC"}, "pre_tokenizer": PRE_TOKENIZERS["qwen2"]},
    "pieces": PIECES,
    "gemma": PIECES
    | {
        "normalizer": PIECES["normalizer"]["normalizers"][1],
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "decoder": {"type": "Sequence", "decoders": PIECES["decoder"]["decoders"][:-1]},
    },
}
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
TEXTS = st.lists(
    st.text(max_size=6)
    | st.sampled_from(
        ["<s>", "</s>", "<|user|>", "<unk>", "▁", " hello", "12345", "<0x0A>", "e\u0301"]
    )
).map("".join)


@cache
def folder(kind: str, tokenizer_class: str | None, model_type: str) -> Path:
    made = Path(mkdtemp())
    described = {"tokenizer_class": tokenizer_class, **NAMED}
    (made / "tokenizer.json").write_text(json.dumps(FILES[kind]))
    (made / "tokenizer_config.json").write_text(json.dumps(described))
    (made / "config.json").write_text(json.dumps({"model_type": model_type}))
    return made


@cache
def both(*described: str | None) -> tuple[HuggingFaceTokenizer, TokenizersBackend]:
    model = folder(*described)
    return load_tokenizer(model, frozenset()), AutoTokenizer.from_pretrained(model)


def assert_same(ours: HuggingFaceTokenizer, theirs: TokenizersBackend, text: str) -> None:
    for adds_special in (True, False):
        ids = ours.encode(text, adds_special)
        assert ids == theirs.encode(text, add_special_tokens=adds_special)
    for skips_special in (True, False):
        decoded = ours.decode(ids, skips_special)
        assert decoded == theirs.decode(ids, skip_special_tokens=skips_special)


@pytest.mark.parametrize(
    "described",
    [
        ("embedded", "PreTrainedTokenizerFast", "llama"),
        ("embedded", "TokenizersBackend", "smollm3"),
        ("embedded", "LlamaTokenizerFast", "deepseek_v3"),
        ("embedded", "Unheard", "gpt_oss"),
        ("embedded", None, "glm4"),
        ("smollm", "GPT2Tokenizer", "granite"),
        ("smollm", "GPT2TokenizerFast", "olmo2"),
        ("gpt2", "GPT2Tokenizer", "llama"),
        ("qwen2", "Qwen2Tokenizer", "qwen2"),
        ("qwen2", "LlamaTokenizerFast", "qwen2"),
        ("qwen2", "Qwen2TokenizerFast", "qwen3"),
        ("pieces", "LlamaTokenizer", "mistral"),
        ("pieces", "LlamaTokenizerFast", "mixtral"),
        ("pieces", "LlamaTokenizer", "phi3"),
        ("gemma", "GemmaTokenizer", "gemma3_text"),
        ("gemma", "GemmaTokenizerFast", "gemma3_text"),
    ],
    ids=lambda described: " ".join(map(str, described)),
)
@given(text=TEXTS)
def test_tokens_are_those_of_transformers(described: tuple[str | None, ...], text: str) -> None:
    assert_same(*both(*described), text)


@pytest.mark.parametrize(
    ("kind", "named", "text"),
    [("smollm", "GPT2Tokenizer", "in  12"), ("pieces", "LlamaTokenizer", "</s>hello")],
)
def test_the_file_holds_where_a_class_of_transformers_builds_it_anew(
    kind: str, named: str, text: str
) -> None:
    """As SmolLM2 was trained, with digits apart, and Llama 2, with a space before each turn."""
    model = folder(kind, named, "llama")
    ours = load_tokenizer(model, frozenset())
    assert ours.encode(text) != AutoTokenizer.from_pretrained(model).encode(text)
    assert_same(ours, TokenizersBackend.from_pretrained(model), text)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"bos_token": "<new>", "eos_token": {"__type": "AddedToken", "content": "</s>"}},
        {"mask_token": None, "image_token": "<image>", "add_bos_token": True},
        {"extra_special_tokens": {"audio_token": "<audio>", "boi_token": "the"}},
        {"additional_special_tokens": ["<|user|>", "<one>", "the"]},
        {
            "added_tokens_decoder": {
                "2048": {"content": "<two>", "special": False, "normalized": True},
                "1": {"content": "</s>", "special": True, "lstrip": True},
            }
        },
    ],
)
def test_added_tokens_are_those_of_transformers(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(EMBEDDED))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", **config}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(described))
    backend, found = read_tokenizer(tmp_path)
    theirs = TokenizersBackend.from_pretrained(tmp_path)
    assert backend.to_str() == theirs.backend_tokenizer.to_str()
    assert found.special_tokens == theirs.special_tokens_map


def test_names_in_a_file_of_an_older_version(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(EMBEDDED))
    named = {"eos_token": {"content": "<end>", "lstrip": True}, "bos_token": "<s>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(named))
    backend, found = read_tokenizer(tmp_path)
    theirs = TokenizersBackend.from_pretrained(tmp_path)
    assert backend.to_str() == theirs.backend_tokenizer.to_str()
    assert (
        found.special_tokens
        == theirs.special_tokens_map
        == {"bos_token": "<s>", "eos_token": "<end>"}
    )


@pytest.mark.parametrize(
    "config",
    [{"added_tokens_decoder": {"x": {}}}, {"added_tokens_decoder": []}, {"bos_token": {"a": 1}}],
)
def test_configuration_that_makes_no_sense_is_a_fault(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    shutil.copy(EMBEDDED_MODEL / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(StartupError, match="the tokenizer cannot be loaded"):
        load_tokenizer(tmp_path, frozenset())


def processed(single: list[Any], ids: list[int]) -> dict[str, Any]:
    special = {"id": "<s>", "ids": ids, "tokens": ["<s>"] * len(ids)}
    template = {"single": single, "pair": PAIR, "special_tokens": {"<s>": special}}
    return EMBEDDED | {"post_processor": {"type": "TemplateProcessing", **template}}


TEXT = {"Sequence": {"id": "A", "type_id": 0}}
BEGIN = {"SpecialToken": {"id": "<s>", "type_id": 0}}
PAIR = [TEXT, {"Sequence": {"id": "B", "type_id": 1}}]


@pytest.mark.parametrize(
    "tokenizer",
    [
        processed([TEXT] * 100_000, [0]),
        processed([BEGIN] * 100_000 + [TEXT], [0]),
        processed([BEGIN, TEXT], [0] * 100_000),
        EMBEDDED
        | {
            "post_processor": {
                "type": "Sequence",
                "processors": [processed([TEXT] * 20, [0])["post_processor"]],
            }
        },
        EMBEDDED | {"normalizer": {"type": "Prepend", "prepend": "ab " * 1000}},
    ],
    ids=["repeats", "many tokens", "a long token", "a sequence", "a normaliser"],
)
def test_tokenizers_that_make_many_tokens_of_a_letter_are_refused(
    tmp_path: Path, tokenizer: dict[str, Any]
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(StartupError, match=r"cannot be loaded \(it makes \d+ tokens of a letter, "):
        load_tokenizer(tmp_path, frozenset())


def test_tokenizers_that_add_a_few_tokens_are_not(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(processed([BEGIN, TEXT, BEGIN], [0])))
    assert load_tokenizer(tmp_path, frozenset()).encode("") == [0, 0]


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_templates/tool_use.jinja"])
@pytest.mark.parametrize("kind", ["large", "endless", "silent"])
def test_templates_are_read_up_to_their_bound(tmp_path: Path, name: str, kind: str) -> None:
    shutil.copy(EMBEDDED_MODEL / "tokenizer.json", tmp_path)
    (file := tmp_path / name).parent.mkdir(exist_ok=True)
    (file.with_name("default.jinja")).write_text("{{ messages }}")
    if kind == "large":
        file.write_text("{#" + "x" * MAX_TEMPLATE_BYTES + "#}")
    elif kind == "endless":
        file.symlink_to("/dev/zero")
    else:
        os.mkfifo(file)
    if file.is_file() or file.parent != tmp_path:  # what is no file is no template of the folder
        with pytest.raises(StartupError, match=r"more than|nobody writes to it"):
            load_tokenizer(tmp_path, frozenset())
