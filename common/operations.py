"""`@operation` describes the body and answers of a view for `/openapi.json`.

A content is a pydantic model (or any type that pydantic supports), a JSON schema, or a string for
text of that media type; a tuple lists several.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

Content = Any
JsonSchema = Mapping[str, Any]
ViewT = TypeVar("ViewT", bound=Callable[..., Any])

_ATTRIBUTE = "operation"  # attribute of a view function with its Operation


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of OpenAPI. `answers` is by status; `query` and `headers` by parameter name."""

    summary: str
    answers: Mapping[int, Content]
    body: Content | None = None
    query: Mapping[str, JsonSchema] = field(default_factory=dict)
    headers: Mapping[str, JsonSchema] = field(default_factory=dict)


def operation(
    summary: str,
    answers: Mapping[int, Content],
    body: Content | None = None,
    query: Mapping[str, JsonSchema] | None = None,
    headers: Mapping[str, JsonSchema] | None = None,
) -> Callable[[ViewT], ViewT]:
    """Returns a decorator that describes a view and does not change it."""
    described = Operation(summary, answers, body, query or {}, headers or {})

    def describe(view: ViewT) -> ViewT:
        setattr(view, _ATTRIBUTE, described)
        return view

    return describe


def operation_of(view: Callable[..., Any]) -> Operation | None:
    """Returns the description of a view, even if it is wrapped with `functools.wraps`, or None."""
    return getattr(view, _ATTRIBUTE, None)
