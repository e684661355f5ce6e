"""The base of answers as typed dictionaries, which pydantic describes and the type checker holds;
building one costs no more than the dictionary."""

from pydantic import with_config
from typing_extensions import TypedDict


@with_config(extra="forbid")
class WireDict(TypedDict):
    pass
