"""Reads the weights of a safetensors file whole, for numbers that are none. Loads no torch."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from inference_api.engine.loading.json_files import UnusableJson
from inference_api.engine.loading.weight_files import read_entries

CHUNK_BYTES = 16 * 1024**2


class _Exponent(NamedTuple):
    """Where a float of some type has its exponent: all ones in infinities and what is no number."""

    word: str  # numpy's unsigned integer of that size
    mask: int


EXPONENTS = {
    "F32": _Exponent("<u4", 0x7F800000),
    "F16": _Exponent("<u2", 0x7C00),
    "BF16": _Exponent("<u2", 0x7F80),
    "F8_E4M3": _Exponent("<u1", 0x7F),  # has no infinities: all ones are no number
}


def number_faults(file: Path) -> list[str]:
    """The first weight that is infinite or no number, if there is one, with its byte."""
    try:
        at_fault = _first_fault(file)
    except (OSError, UnusableJson, ValueError, LookupError, TypeError) as error:
        at_fault = f"damaged or incomplete ({error})"
    return [] if at_fault is None else [f"{file}: {at_fault}; get the file again."]


def _first_fault(file: Path) -> str | None:
    start, entries = read_entries(file)
    with file.open("rb") as stream:
        for name, entry in entries.items():
            if (exponent := EXPONENTS.get(entry["dtype"])) is None:
                continue
            first, end = (start + offset for offset in entry["data_offsets"])
            stream.seek(first)
            for at in range(first, end, CHUNK_BYTES):
                content = stream.read(min(CHUNK_BYTES, end - at))
                words = np.frombuffer(content, exponent.word)
                bad = np.flatnonzero(words & exponent.mask == exponent.mask)
                if len(bad):
                    byte = at + int(bad[0]) * words.itemsize
                    return f"{name} is not finite, at byte {byte}"
    return None
