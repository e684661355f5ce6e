"""Turns the seed into files of the work folder: tokenizer, training and validation windows."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer

from common.files import whole_file, write_whole

from .documents import PAD, Corpus, Document, render
from .relations import Relation
from .tokenizer import load_tokenizer, token_id, train_tokenizer
from .windows import Windows, encode, pack

SHORT_WINDOW = 256
LONG_WINDOW = 1024
_TOKENIZER_DOCUMENTS = 40_000
_VALIDATION_DOCUMENTS = 2_000
_LONG_DOCUMENT_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class CorpusFigures:
    seed: int
    documents: int
    long_documents: int
    tokens: int


def prepare_tokenizer(work: Path, seed: int) -> Tokenizer:
    texts = (render(document) for document in Corpus(seed).documents(_TOKENIZER_DOCUMENTS))
    tokenizer = train_tokenizer(texts)
    write_whole(work / "tokenizer.json", tokenizer.to_str(pretty=True))
    return tokenizer


def prepare_windows(
    work: Path, seed: int, num_documents: int, topic: Sequence[Relation] = ()
) -> CorpusFigures:
    """Writes the windows that training reads, and the figures of the corpus for the model card."""
    tokenizer = load_tokenizer(work / "tokenizer.json")
    rng = Random(seed)
    corpus = Corpus(seed, topic=topic)
    num_long = round(num_documents * _LONG_DOCUMENT_SHARE)
    pad_id = token_id(tokenizer, PAD)

    def windows(documents: Iterable[Document], length: int) -> Windows:
        return pack(encode(documents, tokenizer, rng), length + 1, pad_id)

    short = windows(corpus.documents(num_documents), SHORT_WINDOW)
    long = windows(corpus.long_documents(num_long), LONG_WINDOW)
    held_out = Corpus(seed, held_out=True, topic=topic).documents(_VALIDATION_DOCUMENTS)
    for name, part in (
        ("short", short),
        ("long", long),
        ("validation", windows(held_out, SHORT_WINDOW)),
    ):
        for kind, array in (("ids", part.ids), ("is_target", part.is_target)):
            with whole_file(work / f"{name}_{kind}.npy") as draft, draft.open("wb") as file:
                np.save(file, array)
    num_tokens = sum(int((part.ids != pad_id).sum()) for part in (short, long))
    figures = CorpusFigures(seed, num_documents, num_long, num_tokens)
    write_whole(work / "corpus.json", json.dumps(asdict(figures)))
    return figures
