"""Reads the grammars that clients send: llguidance's Lark, or llama.cpp's GBNF."""

import re

from inference_api.errors import InvalidRequest
from inference_api.request import ConstraintSpec

CLIENT_GRAMMAR = "%lark"  # begins a client's grammar inside a larger one
EXTRA = (
    "llguidance, which is not installed here: pip install -r requirements-constraints.txt, "
    "or Hearth with its extra 'constraints'"
)
LISTING = re.compile(r"\n *[0-9]+ \|")  # what follows quotes the engine's own grammar


def lark_of(spec: ConstraintSpec) -> str:
    """Returns the grammar as Lark. Raises InvalidRequest if it is neither Lark nor GBNF."""
    try:
        from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark
    except ImportError as error:
        raise InvalidRequest(f"{spec.field} needs {EXTRA}.", spec.field) from error
    try:
        return any_to_lark(spec.text)
    except (IndexError, RecursionError):  # the text ends too early, or is nested too deep
        raise unusable(spec, "neither Lark nor GBNF") from None
    except Exception as error:
        if type(error) not in (Exception, GbnfToLarkError):  # the converter's own errors
            raise
        raise unusable(spec, f"neither Lark nor GBNF: {error}") from None


def unusable(spec: ConstraintSpec, reason: str) -> InvalidRequest:
    said = first_line(reason)
    if said.endswith(":"):  # the pattern comes next, and only then what is wrong
        said = " ".join(LISTING.split(reason)[0].split())[:300]
    return InvalidRequest(f"{spec.field} cannot be used: {said}; change it.", spec.field)


def first_line(reason: str) -> str:
    return reason.strip().partition("\n")[0][:300]
