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
    """An operation of OpenAPI, and the decorator of its view. `answers` is by status; `query` and
    `headers` by parameter name."""

    summary: str
    answers: Mapping[int, Content]
    body: Content | None = None
    query: Mapping[str, JsonSchema] = field(default_factory=dict)
    headers: Mapping[str, JsonSchema] = field(default_factory=dict)

    def __call__(self, view: ViewT) -> ViewT:
        """Describe a view, which does not change."""
        setattr(view, _ATTRIBUTE, self)
        return view


operation = Operation


def operation_of(view: Callable[..., Any]) -> Operation | None:
    """Returns the description of a view, even if it is wrapped with `functools.wraps`, or None."""
    return getattr(view, _ATTRIBUTE, None)
