"""SentencePiece models, against SentencePiece."""

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from inference_api.errors import StartupError
from inference_api.loading.gguf.tokenizer import MAX_TOKENS
from inference_api.loading.heads import tokenizer_sha256
from inference_api.loading.sentence_pieces import read_sentence_pieces
from inference_api.loading.tokenizer_files import eos_token_ids, read_tokenizer
from inference_api.text.tokens import load_tokenizer

SENTENCES = [
    "Hello world, hello words and other worlds of words.",
    "  the lower, the slower: lowest and slowest 1234 12 34",
    "Ein naïver Satz – mit Übungen, Größe und Maß.",
    "日本語の文と日本の本",
] * 5


def trained(target: Path, **options: Any) -> Path:
    with io.BytesIO() as model:
        SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES),
            model_writer=model,
            minloglevel=2,
            **{
                "vocab_size": 420,
                "model_type": "bpe",
                "byte_fallback": True,
                "normalization_rule_name": "identity",
                "remove_extra_whitespaces": False,
                **options,
            },
        )
        target.write_bytes(model.getvalue())
    return target


KINDS: dict[str, dict[str, Any]] = {
    "as Llama's": {},
    "as Gemma's": {"add_dummy_prefix": False, "split_digits": True, "pad_id": 3},
    "with symbols of the user": {
        "add_dummy_prefix": False,
        "user_defined_symbols": ["[INST]", "lower"],
        "bos_id": 5,
    },
}


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pieces")
    trained(folder / "tokenizer.model", **KINDS[request.param])
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>", "bos_token": "<s>"}')
    return folder


TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0▁"), max_size=8)
    | st.sampled_from(["lower", "[INST]", "  ", " worlds", "12", "\n", "日本", "slowest"])
).map("".join)


@given(text=TEXTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tokens_are_those_of_sentencepiece(model: Path, text: str) -> None:
    theirs = SentencePieceProcessor(model_file=str(model / "tokenizer.model"))
    ours = load_tokenizer(model, frozenset())
    ids = ours.encode(text)
    assert ids == [theirs.bos_id(), *theirs.encode(text)]
    assert ours.encode(text, add_special_tokens=False) == ids[1:]
    assert ours.decode(ids[1:]) == theirs.decode(ids[1:])


def test_vocabulary_and_ends_are_those_of_sentencepiece(model: Path) -> None:
    theirs = SentencePieceProcessor(model_file=str(model / "tokenizer.model"))
    found = read_tokenizer(model)
    assert found.ids == {theirs.id_to_piece(id_): id_ for id_ in range(theirs.get_piece_size())}
    special = {
        id_ for id_ in found.ids.values() if theirs.is_control(id_) or theirs.is_unknown(id_)
    }
    assert {*found.special.values()} == special
    assert eos_token_ids(model, {}) == {theirs.eos_id()}
    content = (model / "tokenizer.model").read_bytes()
    assert tokenizer_sha256(model) == hashlib.sha256(content).hexdigest()
    info = load_tokenizer(model, frozenset()).info()
    assert (info["bos_token"], info["eos_token"]) == ("<s>", "</s>")


def test_configuration_may_leave_out_bos(model: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").symlink_to(model / "tokenizer.model")
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    tokenizer = load_tokenizer(tmp_path, frozenset())
    assert tokenizer.encode("lower") == tokenizer.encode("lower", add_special_tokens=False)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"model_type": "unigram", "vocab_size": 310}, "not BPE"),
        ({"normalization_rule_name": "nmt_nfkc"}, "changes a text"),
        ({"remove_extra_whitespaces": True}, "changes a text"),
    ],
)
def test_model_that_cuts_otherwise_is_refused(
    tmp_path: Path, options: dict[str, Any], fault: str
) -> None:
    file = trained(tmp_path / "tokenizer.model", **options)
    with pytest.raises(StartupError, match=fault):
        read_sentence_pieces(file)


def test_model_of_more_pieces_than_any_is_refused(tmp_path: Path) -> None:
    """An empty piece takes two bytes in a file."""
    file = tmp_path / "tokenizer.model"
    file.write_bytes(b"\x0a\x00" * (MAX_TOKENS + 1))
    with pytest.raises(StartupError, match=f"more than {MAX_TOKENS} pieces"):
        read_sentence_pieces(file)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: b"IQ== 0\nIg== 1\n" * 100,  # a vocabulary of tiktoken
        lambda content: b"\xff" * 50,
        lambda content: b"\x0b" + content,
        lambda content: content.replace(b"<0x41>", b"\xff0x41>"),
        lambda content: content.replace(b"<0x41>", b"<0x42>"),
    ],
)
def test_damaged_model_is_a_fault(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    file = trained(tmp_path / "tokenizer.model")
    file.write_bytes(damage(file.read_bytes()))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(StartupError):
        read_tokenizer(tmp_path)
