"""No token stands for more bytes than the bound says, and no text is normalised shorter."""

import json
import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from inference_api.loading.gguf.tokenizer import tokenizer_json
from inference_api.settings import EMBEDDED_MODEL
from inference_api.text.prompt_bounds import CANONICAL_SHRINKAGE, bytes_per_token
from tests.inference_api.sentence_pieces import METADATA

Json = dict[str, Any]
EMBEDDED: Json = json.loads((EMBEDDED_MODEL / "tokenizer.json").read_text())
SENTENCE_PIECES = tokenizer_json(METADATA)
ALL = list(map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))))


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@given(text=st.text(max_size=30))
def test_unicode_normal_forms_shorten_no_text_by_more_than_their_factor(
    form: Any, text: str
) -> None:
    normal = unicodedata.normalize(form, text).encode()
    assert len(text.encode()) <= CANONICAL_SHRINKAGE * len(normal)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_that_factor_is_met_but_not_exceeded_by_any_character(form: Any) -> None:
    """Whole, and decomposed, which NFC puts together again."""
    factors = [
        len(text.encode()) / len(unicodedata.normalize(form, text).encode())
        for char in ALL
        for text in {char, unicodedata.normalize("NFD", char)}
    ]
    assert max(factors) == CANONICAL_SHRINKAGE


@pytest.mark.parametrize("description", [EMBEDDED, SENTENCE_PIECES], ids=["bytes", "pieces"])
@given(text=st.text(max_size=200) | st.text("a ▁</s>9\u00e9\u212a", max_size=200))
def test_no_text_has_more_bytes_than_its_tokens_can_stand_for(description: Json, text: str) -> None:
    ids = Tokenizer.from_str(json.dumps(description)).encode(text).ids
    assert len(text.encode()) <= bytes_per_token(description) * len(ids)


def test_embedded_models_longest_token_is_the_bound() -> None:
    assert bytes_per_token(EMBEDDED) == len("<|assistant|>")


CHANGES: dict[str, Callable[[Json], Any]] = {
    "a normaliser that drops": lambda it: it.update(normalizer={"type": "StripAccents"}),
    "white space that is dropped": lambda it: it["pre_tokenizer"]["pretokenizers"].append(
        {"type": "WhitespaceSplit"}
    ),
    "a split that drops": lambda it: it["pre_tokenizer"]["pretokenizers"].append(
        {"type": "Split", "pattern": {"String": "x"}, "behavior": "Removed", "invert": False}
    ),
    "a byte without a token": lambda it: it["model"]["vocab"].pop("Ā"),
    "unknown words": lambda it: it["model"].update(type="WordPiece"),
    "a token that takes white space": lambda it: it["added_tokens"][0].update(lstrip=True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_without_a_proof_four_times_the_longest_token_is_the_bound(
    change: Callable[[Json], Any],
) -> None:
    description = json.loads(json.dumps(EMBEDDED))
    change(description)
    assert bytes_per_token(description) == 4 * len("<|assistant|>")


def test_a_normaliser_that_shortens_multiplies_the_bound() -> None:
    replace = {"type": "Replace", "pattern": {"String": "----"}, "content": "--"}
    steps = [{"type": "NFC"}, replace, {"type": "Prepend", "prepend": "x"}]
    normalizer = {"type": "Sequence", "normalizers": steps}
    assert bytes_per_token({**EMBEDDED, "normalizer": normalizer}) == 13 * 3 * 2
