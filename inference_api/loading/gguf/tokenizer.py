"""Converts the tokenizer in a GGUF file's metadata to the JSON of the tokenizers library.

Three kinds are supported: byte-level BPE ("gpt2"), whose pre-tokenizer GGUF names; SentencePiece's
BPE ("llama"), whose merges follow from the scores of its pieces; and the same with explicit merges
("gemma4"). Uses neither torch nor transformers.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from inference_api.errors import StartupError
from inference_api.loading.end_tokens import known_ends

Json = dict[str, Any]
Metadata = Mapping[str, Any]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # GGUF's types of tokens
KINDS = ("gpt2", "llama", "gemma4")  # values of tokenizer.ggml.model
SPACE = "▁"  # what SentencePiece writes for a space
MAX_TOKENS = 1_000_000  # the largest published vocabularies have 262,208
MAX_PIECE_CHARACTERS = 256  # SentencePiece learns up to 16; merges try every cut of a piece
MAX_MERGES = 2_000_000  # Gemma's pieces have 514,906

_BYTES: Json = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_BYTES_OF_PIECES: Json = {**_BYTES, "use_regex": False}
_DIGITS: Json = {"type": "Digits", "individual_digits": True}
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _sequence(*steps: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _words_and_numbers(digits: str, marks: str = "") -> Json:
    """Returns the pattern of GPT-4 and its descendants. They differ in how many digits stay
    together, and in whether marks count as letters."""
    letter = rf"[\p{{L}}{marks}]" if marks else r"\p{L}"
    pattern = (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letter}+|\p{{N}}{digits}"
        rf"| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|{_SPACE}"
    )
    return _sequence(_split(pattern), _BYTES_OF_PIECES)


_MARK = r"[^\r\n\p{L}\p{N}]?"
_HAN = r"\p{Han}"


def _cased_words(contractions: str, digits: str, has_han_apart: bool = False) -> Json:
    """Returns the pattern of GPT-4o and its descendants: a word ends where capitals begin. With
    `has_han_apart` (Kimi), Chinese characters form words of their own."""
    first, others, ends = (rf"{_HAN}+|", f"&&[^{_HAN}]", "") if has_han_apart else ("", "", "/")
    upper, lower = (
        rf"[{kinds}\p{{Lm}}\p{{Lo}}\p{{M}}{others}]" for kinds in (r"\p{Lu}\p{Lt}", r"\p{Ll}")
    )
    pattern = (
        rf"{first}{_MARK}{upper}*{lower}+{contractions}|{_MARK}{upper}+{lower}*{contractions}"
        rf"|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{ends}]*|{_SPACE}"
    )
    return _sequence(_split(pattern), _BYTES_OF_PIECES)


# Upper- and lower-case letters of the Unicode version that the first DeepSeek models used.
_CASED = (
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 "
    "388-38a 38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba "
    "1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 "
    "1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb "
    "1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d "
    "212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 "
    "a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a "
    "ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"
)
_MARKS = "21-2f 3a-7e ff01-ff0f ff1a-ff5e 2018-201f 3000-3002"
_ASIAN = "4e00-9fa5 800-4e00 ac00-d7ff"
_CHINESE_AND_JAPANESE = "4e00-9fa5 3040-309f 30a0-30ff"


def _class(ranges: str) -> str:
    """Returns a character class, from hexadecimal code points."""
    points = re.sub(r"[0-9a-f]+", lambda found: rf"\x{{{found[0]}}}", ranges)
    return f"[{points.replace(' ', '')}]"


_DEEPSEEK_V3 = _sequence(
    _split(r"\p{N}{1,3}"),
    _split(f"{_class(_CHINESE_AND_JAPANESE)}+"),
    _split(
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        rf"""| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACE}"""
    ),
    _BYTES_OF_PIECES,
)
_LLAMA_3 = _words_and_numbers("{1,3}")
_LIKE_LLAMA = ("falcon-h1", "falcon3", "lfm2", "llama-v3", "llama3", "pixtral")
# Keys are values of tokenizer.ggml.pre. llama-vocab.cpp says which of them mean the same.
PRE_TOKENIZERS: dict[str, Json] = {
    "gpt-2": _BYTES,
    **dict.fromkeys(("smollm", "starcoder", "refact"), _sequence(_DIGITS, _BYTES)),
    **dict.fromkeys(("llama-bpe", "dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _LLAMA_3),
    "gpt-4o": _cased_words(f"{_CONTRACTIONS}?", "{1,3}"),
    "kimi-k2": _cased_words(f"{_CONTRACTIONS}?", "{1,3}", has_han_apart=True),
    "tekken": _cased_words("", ""),
    "qwen2": _words_and_numbers(""),
    "qwen35": _words_and_numbers("", marks=r"\p{M}"),
    "deepseek-llm": _sequence(
        _split(r"[\r\n]"),
        _split(rf"\s?{_class(_CASED)}+"),
        _split(rf"\s?{_class(_MARKS)}+"),
        _split(r"\s+$"),
        _split(f"{_class(_ASIAN)}+"),
        _DIGITS,
        _BYTES_OF_PIECES,
    ),
    "deepseek-v3": _DEEPSEEK_V3,
    "falcon": _sequence(
        {"type": "Punctuation", "behavior": "Contiguous"},
        _BYTES,
        {"type": "Digits", "individual_digits": False},
        _split("[0-9][0-9][0-9]"),
    ),
    "hunyuan": _words_and_numbers(""),
    "hunyuan-dense": _DEEPSEEK_V3,
    **dict.fromkeys(_LIKE_LLAMA, _LLAMA_3),
}
# A word that is a token needs no merges.
_WHOLE_WORDS_FIRST = ("llama-bpe", *_LIKE_LLAMA, "tekken")
_COMPOSED = ("qwen2", "qwen35")  # characters are composed (NFC) first


def vocabulary(metadata: Metadata) -> dict[str, int]:
    """Returns ids by token. Raises StartupError if the file has no supported tokenizer."""
    _check(metadata)
    return {token: number for number, token in enumerate(metadata["tokenizer.ggml.tokens"])}


def eos_token_ids(metadata: Metadata) -> list[int]:
    """Returns the tokens that end an answer, a turn or a message, by the file or by their text.
    Raises TypeError for an invalid vocabulary."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    named = [metadata[key] for key in keys if isinstance(metadata.get(key), int)]
    lists = (metadata.get(f"tokenizer.ggml.{name}") or () for name in ("tokens", "token_type"))
    numbered = enumerate(zip(*lists, strict=False))
    control = {token: number for number, (token, kind) in numbered if kind == CONTROL}
    return [*named, *known_ends(control)]


def special_token(metadata: Metadata, name: str) -> str | None:
    """Returns the text of the "bos", "eos" or "unknown" token, if the file has one."""
    number = metadata.get(f"tokenizer.ggml.{name}_token_id")
    tokens = metadata["tokenizer.ggml.tokens"]
    return tokens[number] if isinstance(number, int) and 0 <= number < len(tokens) else None


def tokenizer_json(metadata: Metadata) -> Json:
    """Returns the contents of a tokenizer.json. Raises StartupError."""
    vocab = vocabulary(metadata)
    types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(vocab)
    is_byte_level = metadata["tokenizer.ggml.model"] == "gpt2"
    describe = _byte_level if is_byte_level else _sentence_pieces
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": token,
                **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
                "special": types[number] != USER_DEFINED,
            }
            for token, number in vocab.items()
            if types[number] in (CONTROL, UNKNOWN, USER_DEFINED)
        ],
        "post_processor": _post_processor(metadata, is_byte_level),
        **describe(metadata, vocab),
    }


def _check(metadata: Metadata) -> None:
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    tokens: Any = metadata.get("tokenizer.ggml.tokens")
    types: Any = metadata.get("tokenizer.ggml.token_type")
    scores: Any = metadata.get("tokenizer.ggml.scores")
    fault = None
    if kind not in KINDS:
        fault = f"tokenizer.ggml.model={kind!r} is none of {', '.join(KINDS)}"
    elif kind == "gpt2" and not (isinstance(pre, str) and pre in PRE_TOKENIZERS):
        fault = f"tokenizer.ggml.pre={pre!r} is none of {', '.join(PRE_TOKENIZERS)}"
    elif isinstance(tokens, list) and len(tokens) > MAX_TOKENS:
        fault = f"tokenizer.ggml.tokens has {len(tokens)} tokens, more than {MAX_TOKENS}"
    elif not _are(tokens, str) or len(set(tokens)) != len(tokens):
        fault = "tokenizer.ggml.tokens is no list of different tokens"
    elif kind != "llama" and not _are(metadata.get("tokenizer.ggml.merges"), str):
        fault = "tokenizer.ggml.merges is no list of merges"
    elif kind == "llama" and not (_are(scores, float) and len(scores) == len(tokens)):
        fault = "tokenizer.ggml.scores has not one score for each token"
    elif kind == "llama" and max(map(len, tokens), default=0) > MAX_PIECE_CHARACTERS:
        fault = f"tokenizer.ggml.tokens has one of more than {MAX_PIECE_CHARACTERS} characters"
    elif types is not None and (not _are(types, int) or len(types) != len(tokens)):
        fault = "tokenizer.ggml.token_type has not one type for each token"
    if fault is not None:
        raise _unusable(fault)


def _unusable(fault: str) -> StartupError:
    return StartupError(
        f"The GGUF file has no tokenizer that can be read: {fault}; choose another file or the "
        "model's safetensors."
    )


def _are(values: object, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _byte_level(metadata: Metadata, vocab: dict[str, int]) -> Json:
    pre = metadata["tokenizer.ggml.pre"]
    return {
        "normalizer": {"type": "NFC"} if pre in _COMPOSED else None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "decoder": {**_BYTES, "add_prefix_space": True},
        "model": _bpe(vocab, _own_merges(metadata, vocab), ignore_merges=pre in _WHOLE_WORDS_FIRST),
    }


def _own_merges(metadata: Metadata, vocab: dict[str, int]) -> list[list[str]]:
    merges = [merge.split(" ", 1) for merge in metadata["tokenizer.ggml.merges"]]
    return [
        merge for merge in merges if len(merge) == 2 and {*merge, "".join(merge)} <= vocab.keys()
    ]


def _sentence_pieces(metadata: Metadata, vocab: dict[str, int]) -> Json:
    if metadata["tokenizer.ggml.model"] == "llama":
        types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(vocab)
        of_text = (NORMAL, USER_DEFINED)  # SentencePiece never makes others from text
        pieces = {token: number for token, number in vocab.items() if types[number] in of_text}
        all_merges = merges_from_scores(pieces, metadata["tokenizer.ggml.scores"])
        merges = list(islice(all_merges, MAX_MERGES + 1))
        if len(merges) > MAX_MERGES:
            raise _unusable(f"its pieces join in more than {MAX_MERGES} ways")
    else:
        merges = _own_merges(metadata, vocab)
    has_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    prefix: list[Json] = [{"type": "Prepend", "prepend": SPACE}] if has_prefix else []
    spaces: Json = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    back: Json = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    strip: list[Json] = (
        [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    )
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, spaces]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": _bpe(
            vocab,
            merges,
            unk_token=special_token(metadata, "unknown"),
            fuse_unk=True,
            byte_fallback=True,
        ),
    }


def merges_from_scores(vocab: Mapping[str, int], scores: Sequence[float]) -> Iterator[list[str]]:
    """Yields the merges: all ways to cut a piece into two others, the best pieces first, because
    SentencePiece joins the two neighbours whose union has the best score."""
    pieces = sorted(vocab, key=lambda piece: (-scores[vocab[piece]], vocab[piece]))
    for piece in pieces:
        cuts = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        valid = [cut for cut in cuts if cut[0] in vocab and cut[1] in vocab]
        for left, right in sorted(valid, key=lambda cut: (vocab[cut[0]], vocab[cut[1]])):
            yield [left, right]


def _bpe(vocab: dict[str, int], merges: list[list[str]], **options: Any) -> Json:
    return {"type": "BPE", "vocab": vocab, "merges": merges, **options}


def _post_processor(metadata: Metadata, is_byte_level: bool) -> Json | None:
    """Returns the step that puts BOS before a prompt. SentencePiece models need it unless their
    metadata says otherwise."""
    bos = special_token(metadata, "bos")
    if bos is None or not metadata.get("tokenizer.ggml.add_bos_token", not is_byte_level):
        return None
    first: list[Json] = [
        {"SpecialToken": {"id": bos, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    number = metadata["tokenizer.ggml.bos_token_id"]
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {bos: {"id": bos, "ids": [number], "tokens": [bos]}},
    }
