"""Tokenizers of model folders, by whatever class their files name."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoTokenizer

from inference_api.settings.model import EMBEDDED_MODEL
from inference_api.text.tokens import load_tokenizer

TEXT = "  Ein Satz, a naïve one:\n\t12345 tokens <|user|> 日本"


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "mistral"])
@pytest.mark.parametrize(
    "named",
    [
        "PreTrainedTokenizerFast",
        "TokenizersBackend",
        "LlamaTokenizerFast",
        "GPT2Tokenizer",
        "Unheard",
        None,
    ],
)
def test_tokenizer_is_the_one_that_transformers_finds_by_itself(
    tmp_path: Path, model_type: str, named: str | None
) -> None:
    shutil.copy(EMBEDDED_MODEL / "tokenizer.json", tmp_path)
    for name, changed in (
        ("config.json", {"model_type": model_type}),
        ("tokenizer_config.json", {"tokenizer_class": named}),
    ):
        content = json.loads((EMBEDDED_MODEL / name).read_text()) | changed
        (tmp_path / name).write_text(json.dumps(content))
    ours, theirs = load_tokenizer(tmp_path, frozenset()), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.info()["tokenizer_class"] == type(theirs).__name__
    assert ours.encode(TEXT) == theirs.encode(TEXT)
    assert ours.as_json() == theirs.backend_tokenizer.to_str()


def test_embedded_tokenizer_is_had_without_the_models_own_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whose class takes longer to import than torch."""
    monkeypatch.setattr(AutoConfig, "from_pretrained", None)
    assert load_tokenizer(EMBEDDED_MODEL, frozenset()).encode("hi", add_special_tokens=False)
