"""Tables of how every field of a body is treated, for `/docs` and docs/api.md.

`python -m inference_api.apis.field_table` prints them.
"""

import json
from collections.abc import Iterator
from typing import Any, get_args

from inference_api.apis.anthropic.body import MessagesBody
from inference_api.apis.embeddings import EmbeddingsBody
from inference_api.apis.native.body import NativeBody
from inference_api.apis.openai.bodies import ChatBody, CompletionBody
from inference_api.apis.responses.body import ResponsesBody
from inference_api.web.fields import Body
from inference_api.web.left_aside import places

BODIES: dict[str, type[Body]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/responses": ResponsesBody,
    "/v1/messages": MessagesBody,
    "/v1/embeddings": EmbeddingsBody,
    "/inference, /predictions, /chat": NativeBody,
}


def field_tables() -> Iterator[str]:
    """Yields lines of Markdown: a table for each route, with a row for each kind of object."""
    for route, body in BODIES.items():
        yield f"**{route}**\n"
        yield "| in | honoured | left aside | refused, unless it is |"
        yield "|---|---|---|---|"
        for kind, place in places(body).items():
            if issubclass(kind, Body):
                yield _row(place or "the body", kind)
        yield ""


def _row(place: str, kind: type[Body]) -> str:
    if place.endswith("[]") and "type" in kind.model_fields:
        types: Any = kind.model_fields["type"].annotation
        place += f" of type {' or '.join(map(str, get_args(types)))}"
    honoured = [field.alias or name for name, field in kind.model_fields.items()]
    honoured += kind.also_called
    unserved = [
        f"{name} ({' or '.join(map(json.dumps, neutral)) or 'absent'})"
        for name, neutral in sorted(kind.unserved.items())
    ]
    cells = (honoured, sorted(kind.advisory | kind.of_answers), unserved)
    return f"| {place} | " + " | ".join(", ".join(cell) for cell in cells) + " |"


if __name__ == "__main__":
    print("\n".join(field_tables()))
