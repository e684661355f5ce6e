"""A model folder's tokenizer, in GGUF's words."""

import json
from pathlib import Path
from typing import Any

import gguf
from gguf import GGUFWriter

from inference_api.loading.gguf.tokenizer import PRE_TOKENIZERS

NORMAL, CONTROL = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
Json = dict[str, Any]


def add_vocabulary(writer: GGUFWriter, folder: Path) -> None:
    """One of a kind that GGUF has no name for is left out."""
    tokenizer = read_json(folder / "tokenizer.json")
    names = [
        name for name, json_ in PRE_TOKENIZERS.items() if json_ == tokenizer.get("pre_tokenizer")
    ]
    model = tokenizer["model"]
    if model["type"] != "BPE" or not names or not model["merges"]:
        writer.add_tokenizer_model("none")
        return
    special = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    vocabulary = model["vocab"] | {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(names[0])
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token in special else NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    settings = read_json(folder / "tokenizer_config.json")
    for name, add in (
        ("bos_token", writer.add_bos_token_id),
        ("eos_token", writer.add_eos_token_id),
        ("pad_token", writer.add_pad_token_id),
    ):
        if settings.get(name) in vocabulary:
            add(vocabulary[settings[name]])
    writer.add_add_bos_token("TemplateProcessing" in str(tokenizer["post_processor"]))
    if settings.get("chat_template"):
        writer.add_chat_template(settings["chat_template"])


def read_json(path: Path) -> Json:
    """Returns an object; an empty one where there is no file."""
    content: Json = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content
