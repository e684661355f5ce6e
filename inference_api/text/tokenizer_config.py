"""Reads a model's tokenizer: `tokenizer.json`, and the files that name special tokens, add tokens,
and have chat templates; or all of these from a GGUF file.

`tokenizer.json` decides about pre-tokenizer, merges and decoder, whatever class the files name.
Some classes of transformers 5 rebuild these parts and lose properties that the model was trained
with, such as SmolLM2's single digits.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.files import read_bounded
from inference_api.errors import StartupError
from inference_api.loading.gguf import is_gguf, read_gguf
from inference_api.loading.gguf import tokenizer as gguf_tokenizer
from inference_api.loading.json_files import MAX_JSON_BYTES, read_json
from inference_api.loading.tokenizer_files import TOKENIZER, TOKENIZER_CONFIG, tokenizer_json

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend

Json = dict[str, Any]

DEFAULT, WITH_TOOLS = "default", "tool_use"  # names of templates, if a model has several
ADDED = "added_tokens_decoder"
UNNAMED = "PreTrainedTokenizerFast"  # reported if the files name no class
_NAMES = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """A tokenizer's class, special tokens and chat templates, as its files name them. Immutable."""

    tokenizer_class: str = UNNAMED
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # "bos_token": "<s>"
    templates: Mapping[str, str] = field(default_factory=dict)  # "default": its text
    template_source: str = ""


def read_tokenizer(model_dir: Path) -> "tuple[Backend, TokenizerConfig]":
    """Returns the tokenizer of a folder or GGUF file. May raise anything for faulty files."""
    return _of_gguf(model_dir) if is_gguf(model_dir) else _of_folder(model_dir)


def _of_gguf(file: Path) -> "tuple[Backend, TokenizerConfig]":
    from tokenizers import Tokenizer as Backend

    metadata = read_gguf(file).file.metadata
    backend = Backend.from_str(json.dumps(gguf_tokenizer.tokenizer_json(metadata)))
    found = {name: gguf_tokenizer.special_token(metadata, name) for name in ("bos", "eos")}
    named = {f"{name}_token": token for name, token in found.items() if token is not None}
    _add(backend, (), map(_special, named.values()))
    templates = _by_name(metadata.get("tokenizer.chat_template"))
    source = f"{file} (tokenizer.chat_template)"
    return backend, TokenizerConfig(UNNAMED, named, templates, source)


def _of_folder(folder: Path) -> "tuple[Backend, TokenizerConfig]":
    from tokenizers import Tokenizer as Backend

    described = read_json(folder / TOKENIZER_CONFIG, required=False)
    if ADDED not in described:  # written by an older version
        described |= read_json(folder / "special_tokens_map.json", required=False)
    file = folder / TOKENIZER
    backend = (
        Backend.from_file(str(file))
        if file.is_file()
        else Backend.from_str(json.dumps(tokenizer_json(folder)))
    )
    named = {name: _special(value) for name, value in _named_special_tokens(described).items()}
    others = described.get("extra_special_tokens") or described.get("additional_special_tokens")
    added = sorted(described.get(ADDED, {}).items(), key=lambda each: int(each[0]))
    unnamed = map(_special, others if isinstance(others, list) else ())
    _add(backend, (_token(each) for _, each in added), (*named.values(), *unnamed))
    templates, source = _templates(folder, described)
    if templates and DEFAULT not in templates:
        raise StartupError(
            f"{source} has chat templates ({', '.join(templates)}) but no {DEFAULT} one; add it."
        )
    names = {name: token.content for name, token in named.items()}
    return backend, TokenizerConfig(
        described.get("tokenizer_class") or UNNAMED, names, templates, str(source)
    )


def _named_special_tokens(described: Json) -> Json:
    """Returns the named special tokens; the usual names come first."""
    others = described.get("extra_special_tokens")
    fields = described | (others if isinstance(others, dict) else {})
    names = [*_NAMES, *(name for name in fields if name.endswith("_token"))]
    return {name: fields[name] for name in names if isinstance(fields.get(name), str | dict)}


def _special(value: str | Json) -> "AddedToken":
    fields = {"content": value} if isinstance(value, str) else value
    return _token({**fields, "special": True})


def _token(fields: Json) -> "AddedToken":
    from tokenizers import AddedToken

    flags = {name: fields[name] for name in _FLAGS if name in fields}
    return AddedToken(fields["content"], **flags)


def _templates(folder: Path, described: Json) -> tuple[dict[str, str], Path]:
    """Returns templates by name, and their origin. Separate files go before members of others."""
    main_file, named = folder / "chat_template.jinja", folder / "chat_templates"
    files = {file.stem: file for file in sorted(named.glob("*.jinja"))}
    if main_file.is_file():
        return _texts({**files, DEFAULT: main_file}), main_file
    if files:
        return _texts(files), named
    beside = folder / "chat_template.json"
    if "chat_template" in described or not beside.is_file():
        return _by_name(described.get("chat_template")), folder / TOKENIZER_CONFIG
    return _by_name(read_json(beside).get("chat_template")), beside


def _texts(files: Mapping[str, Path]) -> dict[str, str]:
    return {name: read_bounded(file, MAX_JSON_BYTES).decode() for name, file in files.items()}


def _by_name(member: str | list[Json] | None) -> dict[str, str]:
    if isinstance(member, list):
        return {each["name"]: each["template"] for each in member}
    return {} if member is None else {DEFAULT: member}


def _add(
    backend: "Backend", described: Iterable["AddedToken"], named: Iterable["AddedToken"]
) -> None:
    """Add tokens that `tokenizer.json` lacks, or has with other flags than described."""
    known_tokens = set(backend.get_added_tokens_decoder().values())
    wanted = {token.content: token for token in (*known_tokens, *described)}
    for token in named:
        wanted.setdefault(token.content, token)
    backend.add_tokens([token for token in wanted.values() if token not in known_tokens])
