"""Reads a SentencePiece model, `tokenizer.model`, into the metadata of a GGUF file.

The file is one protobuf message, whose field numbers are in sentencepiece_model.proto
(google/sentencepiece, src). GGUF numbers the types of pieces in the same way.
"""

import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from common.files import read_bounded
from inference_api.errors import StartupError
from inference_api.loading.gguf.tokenizer import MAX_TOKENS, NORMAL

SENTENCE_PIECES = "tokenizer.model"
MAX_BYTES = 16 * 1024 * 1024  # Gemma's, with 262,144 pieces, has 4.7 MB
MAX_VARINT_BYTES = 10
_BPE = 2  # type of model; GGUF cannot describe the others
_VARINT, _SIZED = 0, 2  # wire types
_FIXED_BYTES = {1: 8, 5: 4}  # sizes of values by wire type


def read_sentence_pieces(file: Path) -> dict[str, Any]:
    """Returns GGUF's metadata of the tokenizer. Raises StartupError if the file is invalid or of
    another type.

    SentencePiece puts a space before a text, but not after a user-defined symbol inside it. Here,
    as in the models' `tokenizer.json`, a space is put after such a symbol, too.
    """
    try:
        return _metadata(read_bounded(file, MAX_BYTES))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
        raise StartupError(
            f"{file} is no SentencePiece model that can be read ({error}); add a tokenizer.json."
        ) from None


def _metadata(content: bytes) -> dict[str, Any]:
    fields = list(islice(_fields(content), MAX_TOKENS + 1))
    if len(fields) > MAX_TOKENS:
        raise ValueError(f"it has more than {MAX_TOKENS} pieces")
    pieces = [dict(_fields(value)) for number, value in fields if number == 1]
    trainer, normalizer = (dict(_fields(dict(fields).get(number, b""))) for number in (2, 3))
    if trainer.get(3) != _BPE:
        raise ValueError("its model is not BPE")
    if normalizer.get(2) or normalizer.get(4, True):
        raise ValueError("it changes a text before it cuts it")
    ids = {"unknown": trainer.get(40, 0), "bos": trainer.get(41, 1), "eos": trainer.get(42, 2)}
    valid = {name: number for name, number in ids.items() if number < len(pieces)}  # -1: none
    scores = [struct.unpack("<f", piece.get(2, bytes(4)))[0] for piece in pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [piece[1].decode() for piece in pieces],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [piece.get(3, NORMAL) for piece in pieces],
        "tokenizer.ggml.add_space_prefix": bool(normalizer.get(3, True)),
        **{f"tokenizer.ggml.{name}_token_id": number for name, number in valid.items()},
    }


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields field numbers, each with its integer or bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
        else:
            size, at = _varint(message, at) if kind == _SIZED else (_FIXED_BYTES[kind], at)
            yield number, message[at : at + size]
            at += size
    if at > len(message):
        raise ValueError("it is cut short")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Returns the varint at byte `at`, and the byte after it."""
    number = 0
    for count in range(MAX_VARINT_BYTES):
        byte = message[at + count]
        number |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return number, at + count + 1
    raise ValueError(f"it has a number of more than {MAX_VARINT_BYTES} bytes")
