"""Parses sizes of memory with units, such as 2GiB."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

UNIT_BYTES = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?(KiB|MiB|GiB|TiB|)")


def bytes_of(value: object) -> object:
    if not isinstance(value, str):
        return value
    size = SIZE.fullmatch(value)
    if size is None:
        raise ValueError("is not a size; give bytes, or a number of KiB, MiB, GiB or TiB: 2GiB")
    return int(float(size[1]) * UNIT_BYTES[size[2]])


Bytes = Annotated[int, Field(ge=2**10, le=2**50)]
Size = Annotated[Bytes, BeforeValidator(bytes_of)]
Count = Annotated[int, Field(ge=0, le=1024)]
CountOrAuto = Annotated[
    Count | None, BeforeValidator(lambda value: None if value == "auto" else value)
]
SizeOrAuto = Annotated[
    Bytes | None, BeforeValidator(lambda value: None if value == "auto" else bytes_of(value))
]
"""None stands for auto."""
