"""Packs documents into the fixed windows that training reads.

A window holds whole documents, each behind its own `<s>`, so the model meets every document start
in the form it will be served. What is left over at the end of a window is padding without loss.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from .documents import BOS, Document
from .tokenizer import token_id

_OPEN_WINDOWS = 24  # a document goes into the first of these with room
_WHOLE_DOCUMENT_SHARE = 0.08  # documents of which the question is learned too
_ENCODE_BATCH = 20_000


@dataclass(frozen=True, slots=True)
class Windows:
    ids: npt.NDArray[np.uint16]  # [windows, length]
    is_target: npt.NDArray[np.bool_]  # [windows, length]


EncodedDocument = tuple[list[int], list[bool]]


def encode(
    documents: Iterable[Document], tokenizer: Tokenizer, rng: Random
) -> Iterator[EncodedDocument]:
    """Token ids of each document with the marks of those that count in the loss."""
    bos_id = token_id(tokenizer, BOS)
    source = iter(documents)
    while batch := list(islice(source, _ENCODE_BATCH)):
        texts = [piece.text for document in batch for piece in document]
        encodings = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        for document in batch:
            is_whole = rng.random() < _WHOLE_DOCUMENT_SHARE
            ids, marks = [bos_id], [False]
            for piece in document:
                piece_ids = next(encodings).ids
                ids += piece_ids
                marks += [piece.is_target or is_whole] * len(piece_ids)
            yield ids, marks


def pack(encoded: Iterable[EncodedDocument], length: int, pad_id: int) -> Windows:
    """First-fit packing; a document longer than `length` is cut."""
    full: list[EncodedDocument] = []
    open_windows: list[EncodedDocument] = []
    for document_ids, document_marks in encoded:
        ids, marks = document_ids[:length], document_marks[:length]
        for window in open_windows:
            if len(window[0]) + len(ids) <= length:
                window[0].extend(ids)
                window[1].extend(marks)
                break
        else:
            open_windows.append((ids, marks))
            if len(open_windows) > _OPEN_WINDOWS:
                open_windows.sort(key=lambda window: len(window[0]))
                full.append(open_windows.pop())
    return _as_arrays(full + open_windows, length, pad_id)


def _as_arrays(windows: Sequence[EncodedDocument], length: int, pad_id: int) -> Windows:
    ids = np.full((len(windows), length), pad_id, dtype=np.uint16)
    is_target = np.zeros((len(windows), length), dtype=np.bool_)
    for i, (window_ids, marks) in enumerate(windows):
        ids[i, : len(window_ids)] = window_ids
        is_target[i, : len(marks)] = marks
    return Windows(ids, is_target)
