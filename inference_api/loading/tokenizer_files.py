"""Reads the tokenizer's files in a model's folder: its vocabulary, and the tokens that end answers.

Loads neither torch nor transformers.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

from inference_api.errors import StartupError, shown
from inference_api.loading.config import ModelConfig
from inference_api.loading.end_tokens import known_ends
from inference_api.loading.families.fields import token_ids
from inference_api.loading.generation_config import GENERATION_CONFIG
from inference_api.loading.gguf import is_gguf, read_gguf
from inference_api.loading.gguf import tokenizer as gguf_tokenizer
from inference_api.loading.json_files import read_json
from inference_api.loading.sentence_pieces import SENTENCE_PIECES, read_sentence_pieces

TOKENIZER = "tokenizer.json"
MAX_TEMPLATE_BYTES = 1_000_000  # size of a chat template; the longest have some 20,000
MAX_GROWTH = 100  # how many times longer replacements may make a text; spaces become three bytes
CONVERSION = (
    'python -c "from transformers import AutoTokenizer as A; '
    "A.from_pretrained('{0}').save_pretrained('{0}')\""
)
TOKENIZER_CONFIG = "tokenizer_config.json"
NAMES_OF_EOS = (TOKENIZER_CONFIG, "special_tokens_map.json")


class Vocabulary(NamedTuple):
    """A vocabulary; `ids` are keyed by token."""

    ids: dict[str, int]
    special: dict[str, int]


def eos_token_ids(folder: Path, config: dict[str, Any]) -> frozenset[int]:
    """Returns the EOS ids that any file of the folder names, and the special tokens that are known
    to end an answer. `config` is the content of config.json. Raises StartupError."""
    generation = read_json(folder / GENERATION_CONFIG, required=False)
    described = (config, config.get("text_config"), generation)
    named = [each.get("eos_token_id") for each in described if isinstance(each, dict)]
    ids = frozenset[int]().union(*map(token_ids, named))
    if not any((folder / name).is_file() for name in (TOKENIZER, SENTENCE_PIECES)):
        return ids
    vocabulary = read_tokenizer(folder)
    tokens = [read_json(folder / name, required=False).get("eos_token") for name in NAMES_OF_EOS]
    texts = [token.get("content") if isinstance(token, dict) else token for token in tokens]
    by_text = [vocabulary.ids.get(text) for text in texts if isinstance(text, str)]
    return ids | token_ids(by_text) | known_ends(vocabulary.special)


def tokenizer_json(folder: Path) -> dict[str, Any]:
    """Returns the content of the folder's tokenizer.json, or of one made from its SentencePiece
    model. Raises StartupError if it has neither."""
    file, pieces = folder / TOKENIZER, folder / SENTENCE_PIECES
    if file.is_file():
        return read_json(file)
    if pieces.is_file():
        adds_bos = read_json(folder / TOKENIZER_CONFIG, required=False).get("add_bos_token", True)
        described = {**read_sentence_pieces(pieces), "tokenizer.ggml.add_bos_token": adds_bos}
        return gguf_tokenizer.tokenizer_json(described)
    raise StartupError(
        f"{folder} has no {TOKENIZER}; get the model again or, if its tokenizer is of another "
        f"format, make one: {CONVERSION.format(folder)}."
    )


def read_tokenizer(folder: Path) -> Vocabulary:
    """Returns the vocabulary. Raises StartupError if the folder has no tokenizer of the tokenizers
    library. Unigram models list their tokens, the others map them to ids."""
    tokenizer = tokenizer_json(folder)
    try:
        if max(_growth(tokenizer.get(part)) for part in ("normalizer", "decoder")) > MAX_GROWTH:
            raise StartupError(
                f"{folder / TOKENIZER} may make a text more than {MAX_GROWTH} times longer by its "
                "replacements; get it again."
            )
        vocabulary = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, list):
            vocabulary = {entry[0]: index for index, entry in enumerate(vocabulary)}
        entries = tokenizer.get("added_tokens") or []
        ids = {**vocabulary, **{entry["content"]: entry["id"] for entry in entries}}
        if not all(isinstance(number, int) for number in ids.values()):
            raise TypeError("an id that is no integer")
        special = {entry["content"]: entry["id"] for entry in entries if entry.get("special")}
        return Vocabulary(ids, special)
    except (LookupError, TypeError, AttributeError, RecursionError):
        raise StartupError(
            f"{folder / TOKENIZER} is no tokenizer of the tokenizers library; get it again."
        ) from None


def _growth(part: Any) -> float:
    """Returns how many times longer the steps of a normaliser or decoder can make a text."""
    if part is None or part["type"] not in ("Replace", "Sequence"):
        return 1.0
    if part["type"] == "Sequence":
        return math.prod(map(_growth, part.get("normalizers") or part.get("decoders") or ()))
    return max(1.0, len(part["content"]) / len(part["pattern"].get("String") or "a"))


def vocabulary(folder: Path) -> dict[str, int]:
    """Returns ids by token. Raises StartupError if tokenizer.json is not of the tokenizers library,
    or the GGUF file has no tokenizer that Hearth can read."""
    if is_gguf(folder):
        return gguf_tokenizer.vocabulary(read_gguf(folder).file.metadata)
    return read_tokenizer(folder).ids


def vocabulary_difference(model_dir: Path, draft_dir: Path) -> str | None:
    """Returns the first token that differs between the models' vocabularies, or None. Raises
    StartupError."""
    tokens, drafted = vocabulary(model_dir), vocabulary(draft_dir)
    differing = {*tokens.items()} ^ {*drafted.items()}
    if not differing:
        return None
    first = min(token_id for _, token_id in differing)
    of_model, of_draft = (
        shown([repr(token) for token, token_id in sorted(each.items()) if token_id == first])
        for each in (tokens, drafted)
    )
    return (
        f"first in token {first}, which is {of_draft or 'none'} there and {of_model or 'none'} here"
    )


def tokenizer_faults(folder: Path, config: ModelConfig | None) -> list[str]:
    """Returns faults of the tokenizer and, with a `config`, of its fit to the model."""
    try:
        ids = vocabulary(folder)
    except StartupError as error:
        return list(error.faults)
    if config is None:
        return []
    faults = []
    if not config.eos_token_ids:
        faults.append(
            f"{folder} has a tokenizer without EOS, so answers would never end; set eos_token_id "
            f"in {GENERATION_CONFIG} or config.json, or get another GGUF file."
        )
    largest = max(ids.values(), default=0)
    if largest >= config.vocab_size:
        faults.append(
            f"The tokenizer of {folder} has token ids up to {largest}, the model only "
            f"vocab_size={config.vocab_size}; get the tokenizer that belongs to the model."
        )
    return faults
