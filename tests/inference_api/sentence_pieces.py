"""A small SentencePiece vocabulary as a GGUF file describes one, and a tokenizer made of it."""

import json
from typing import Any

from tokenizers import Tokenizer as Backend

from inference_api.loading.gguf.tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, tokenizer_json
from inference_api.text.tokenizer_config import TokenizerConfig
from inference_api.text.tokens import HuggingFaceTokenizer

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_PIECES = ["▁", *map(chr, range(0x21, 0x7F)), "</", "s>", "he", "ll", "hell", "hello", "▁hello"]
_TOKENS = ["<unk>", "<s>", "</s>", *_BYTES, *_PIECES]

# A piece may be put together to a control token's text: SentencePiece never makes one of text.
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": _TOKENS,
    "tokenizer.ggml.scores": [0.0] * 259 + [-float(number) for number in range(len(_PIECES))],
    "tokenizer.ggml.token_type": [
        UNKNOWN,
        CONTROL,
        CONTROL,
        *256 * [BYTE],
        *len(_PIECES) * [NORMAL],
    ],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['role'] }}{% if message['role'] == 'user' and message.name %}"
    " ({{ message.name }}){% endif %}: {{ message['content'] | trim }}{{ eos_token }}{% endfor %}"
)


def sentence_piece_tokenizer(template: str | None = TEMPLATE) -> HuggingFaceTokenizer:
    backend = Backend.from_str(json.dumps(tokenizer_json(METADATA)))
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    templates = {} if template is None else {"default": template}
    config = TokenizerConfig(special_tokens=named, templates=templates)
    return HuggingFaceTokenizer(backend, config, frozenset({2}))
