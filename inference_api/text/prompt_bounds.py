"""Computes the most bytes of text that one token can stand for, a bound to check before encoding.

Reads a tokenizer's description (the content of a `tokenizer.json`). Pure.
"""

import math
from collections.abc import Iterator
from typing import Any

from inference_api.text.token_bytes import BYTE_ALPHABET, BYTE_TOKENS

Json = dict[str, Any]

# Unicode's composition and decomposition make a text at most this many times shorter in UTF-8
# (three jamo of three bytes are one syllable of three; the Kelvin sign's three bytes become a K).
CANONICAL_SHRINKAGE = 3.0
UNPROVEN_SHRINKAGE = 4.0
_KEEPS_ALL = ("ByteLevel", "Digits", "Metaspace", "UnicodeScripts")  # pre-tokenizers that only cut
_CUTS_BY_PATTERN = ("Split", "Punctuation")  # these drop nothing by default


def bytes_per_token(description: Json) -> int:
    """Returns the most bytes of a text, in UTF-8, that one of its tokens stands for.

    For byte-pair encodings with all bytes, which language models use, the bound is proved: the
    pre-tokenizer drops nothing and no character is unknown, so every byte of the normalised text is
    in a token, and no token is longer than the vocabulary's longest. A normaliser shortens text by
    at most a known factor, which multiplies the bound.

    Other tokenizers have no such proof: one unknown token may swallow a word of any length, and
    white space may be dropped. For them the bound is a rule of thumb, four times the longest token.
    """
    longest = max(_token_lengths(description), default=1)
    shrinkage = _shrinkage(description.get("normalizer"))
    if shrinkage is None or not _keeps_every_byte(description):
        shrinkage = UNPROVEN_SHRINKAGE
    return math.ceil(longest * shrinkage)


def steps(part: Json | None, kind: str) -> Iterator[Json]:
    """Yields the steps of a normaliser or pre-tokenizer; `kind` is their key in a sequence."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
    for step in part.get(kind, ()) if part["type"] == "Sequence" else ():
        yield from steps(step, kind)


def is_byte_level(description: Json) -> bool:
    """Returns whether the vocabulary uses GPT-2's alphabet, with a character for each byte."""
    normalizers = steps(description.get("normalizer"), "normalizers")
    pre_tokenizers = steps(description.get("pre_tokenizer"), "pretokenizers")
    return any(step["type"] == "ByteLevel" for step in (*normalizers, *pre_tokenizers))


def _token_lengths(description: Json) -> Iterator[int]:
    is_bytes = is_byte_level(description)
    for token in _vocabulary(description):
        yield len(token) if is_bytes and BYTE_ALPHABET.keys() >= set(token) else len(token.encode())
    for token in description["added_tokens"]:
        yield len(token["content"].encode())


def _vocabulary(description: Json) -> list[str]:
    vocab = description["model"].get("vocab", {})
    return list(vocab) if isinstance(vocab, dict) else [token for token, _ in vocab]


def _shrinkage(normalizer: Json | None) -> float | None:
    """Returns how many times shorter the normaliser can make a text; None: unknown."""
    total = 1.0
    for step in steps(normalizer, "normalizers"):
        if step["type"] in ("NFC", "NFD"):
            total *= CANONICAL_SHRINKAGE
        elif step["type"] == "Replace" and step["pattern"].get("String") and step["content"]:
            removed, written = step["pattern"]["String"].encode(), step["content"].encode()
            total *= max(1.0, len(removed) / len(written))
        elif step["type"] not in ("Prepend", "ByteLevel"):
            return None
    return total


def _keeps_every_byte(description: Json) -> bool:
    model = description["model"]
    vocab = model.get("vocab", {})
    tokens = BYTE_ALPHABET if is_byte_level(description) else BYTE_TOKENS
    return (
        model["type"] == "BPE"
        and (is_byte_level(description) or model.get("byte_fallback", False))
        and vocab.keys() >= tokens.keys()
        and not any(each["lstrip"] or each["rstrip"] for each in description["added_tokens"])
        and all(map(_only_cuts, steps(description.get("pre_tokenizer"), "pretokenizers")))
    )


def _only_cuts(step: Json) -> bool:
    is_harmless = step["type"] in _CUTS_BY_PATTERN and step["behavior"] != "Removed"
    return is_harmless or step["type"] in _KEEPS_ALL
