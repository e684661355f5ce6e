"""Offsets, names and bytes of tokens, whatever tokens a model may draw."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api._mock_inference_api_server import END_TOKEN, ByteTokenizer
from inference_api.apis.openai.logprobs import Logprobs
from inference_api.request import ScoredToken, TokenLogprobs
from inference_api.settings import EMBEDDED_MODEL
from inference_api.text.tokens import REPLACEMENT, Tokenizer, load_tokenizer
from tests.inference_api.sentence_pieces import sentence_piece_tokenizer


@cache
def embedded() -> Tokenizer:
    return load_tokenizer(EMBEDDED_MODEL, frozenset({1}))


@cache
def pieces() -> Tokenizer:
    return sentence_piece_tokenizer()


EURO = list("€".encode())
TOKENIZERS = pytest.mark.parametrize("make", [embedded, pieces, ByteTokenizer])


def scored(token_ids: list[int]) -> list[ScoredToken]:
    return [ScoredToken(token_id, TokenLogprobs(-1.0, 1, ())) for token_id in token_ids]


def tokens_and_offsets(tokenizer: Tokenizer, ids: list[int]) -> tuple[list[str], list[int]]:
    shape: Any = Logprobs(tokenizer, is_chat=False).shape(scored(ids))
    return shape["tokens"], shape["text_offset"]


@pytest.mark.parametrize("make", [embedded, ByteTokenizer])
@given(ids=st.lists(st.integers(0, END_TOKEN), max_size=12))
def test_whole_tokens_are_found_at_their_offsets(make: object, ids: list[int]) -> None:
    assert callable(make)
    tokenizer = make()
    text = tokenizer.decode(ids)
    tokens, offsets = tokens_and_offsets(tokenizer, ids)
    assert offsets == sorted(offsets)
    for id_, token, offset in zip(ids, tokens, offsets, strict=True):
        if tokenizer.special_token(id_) is None and REPLACEMENT not in token:
            assert text[offset : offset + len(token)] == token


@TOKENIZERS
@given(text=st.text())
def test_bytes_of_all_tokens_are_those_of_the_text(make: object, text: str) -> None:
    assert callable(make)
    tokenizer = make()
    ids = tokenizer.encode(f"|{text}")
    shape: Any = Logprobs(tokenizer, is_chat=True).shape(scored(ids))
    joined = b"".join(bytes(entry["bytes"] or []) for entry in shape["content"])
    assert joined.decode().strip(" ").startswith("|")
    assert joined.decode().lstrip(" ") == tokenizer.decode(ids).lstrip(" ")


@pytest.mark.parametrize("make", [embedded, ByteTokenizer])
@given(
    texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="<>"), min_size=1)),
    data=st.data(),
)
def test_each_text_of_an_answer_has_the_tokens_of_its_bytes(
    make: object, texts: list[str], data: st.DataObject
) -> None:
    """With marks between the texts, whose pieces come as they like, behind their tokens."""
    assert callable(make)
    tokenizer = make()
    tokens = scored(tokenizer.encode("".join(f"<>{text}" for text in texts)))
    logprobs, due, num_bytes = Logprobs(tokenizer, is_chat=True), 0, 0
    for text in texts:
        shown: list[Any] = []
        cut = data.draw(st.integers(0, len(text)))
        due += len("<>")
        for piece in filter(None, (text[:cut], text[cut:])):
            due += len(piece.encode())
            come = []
            while tokens and (num_bytes < due or data.draw(st.booleans())):
                come.append(tokens.pop(0))
                num_bytes += len(tokenizer.token_bytes(come[-1].token_id))
            shown += logprobs.of_text(come, piece)
        joined = [bytes(entry["bytes"]) for entry in shown]
        assert text.encode() in b"".join(joined)
        assert text.encode() not in b"".join(joined[1:])
        assert text.encode() not in b"".join(joined[:-1])


def test_parts_of_a_character_are_at_its_offset() -> None:
    ids = [ord("a"), *EURO, ord("b")]
    assert tokens_and_offsets(ByteTokenizer(), ids) == (
        ["a", *3 * [REPLACEMENT], "b"],
        [0, 1, 1, 1, 2],
    )


def test_what_never_becomes_a_character_is_one_by_itself() -> None:
    ids = [0x80, 0x80, EURO[0], EURO[1], ord("b"), EURO[0], *EURO]
    assert tokens_and_offsets(ByteTokenizer(), ids)[1] == [0, 1, 2, 2, 3, 4, 5, 5, 5]
    assert ByteTokenizer().decode(ids) == "\ufffd\ufffd\ufffdb\ufffd€"


@pytest.mark.parametrize(("make", "name", "id_"), [(embedded, "</s>", 1), (pieces, "</s>", 2)])
def test_a_special_token_has_a_name_and_no_bytes(make: object, name: str, id_: int) -> None:
    assert callable(make)
    shape: Any = Logprobs(make(), is_chat=True).shape(scored([id_]))
    (entry,) = shape["content"]
    assert (entry["token"], entry["bytes"]) == (name, None)


def test_a_prompt_and_its_answer_are_decoded_each_by_itself() -> None:
    """The first word of each loses the space before it, as it does in the text."""
    tokenizer = pieces()
    hello = tokenizer.encode("hello")[1:]
    shape: Any = Logprobs(tokenizer, is_chat=False, num_prompt_tokens=2).shape(scored(4 * hello))
    text = tokenizer.decode(2 * hello) + tokenizer.decode(2 * hello)
    assert text == "hello hellohello hello"
    assert shape["text_offset"] == [0, 5, 11, 16]
