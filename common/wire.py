"""The base class of answers as typed dictionaries. pydantic makes schemas of them and the type
checker checks them, yet building one costs no more than a plain dictionary, which matters for the
log probabilities of every token."""

from pydantic import with_config
from typing_extensions import TypedDict


@with_config(extra="forbid")
class WireDict(TypedDict):
    pass
