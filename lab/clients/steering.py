"""What a small model cannot do by itself: choose the next tool, and end a run.

A request is steered by its own API's fields: `tool_choice` names the tool, whose schema then allows
the planned arguments alone; after the last result the answer is held to a text that is given. The
server writes both token by token, as it would for a model that had thought of them.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]

_SCHEMAS = {"parameters", "input_schema", "format"}
_HOLDERS = {"tools", "function", "input"}


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the model is led to; `arguments` of a custom tool is the text of its input."""

    tool: str
    arguments: dict[str, Any] | str


def api_of(path: str) -> str | None:
    """Returns the API of a request that generates; None for other paths."""
    ends = ("/messages", "/responses", "/chat/completions")
    return next((end.strip("/") for end in ends if path.partition("?")[0].endswith(end)), None)


def tools_of(body: Body) -> list[Body]:
    """Returns the tools of a request, also those that Codex puts among the items of its input."""
    items = body.get("input")
    holders = (
        [body, *(item for item in items if isinstance(item, dict))]
        if isinstance(items, list)
        else [body]
    )
    return [tool for holder in holders for tool in holder.get("tools") or ()]


def led_to(api: str, body: Body, call: Call) -> Body:
    """Returns the body whose answer is this call."""
    choice: Body = {"type": "tool" if api == "messages" else "function", "name": call.tool}
    if api == "chat/completions":
        choice = {"type": "function", "function": {"name": call.tool}}
    if isinstance(call.arguments, str):
        choice["type"] = "custom"
    for tool in tools_of(body):
        if any(inner["name"] == call.tool for inner in tool.get("tools", ())):
            choice["namespace"] = tool["name"]
    narrowed: Body = _narrowed(body, call)
    return narrowed | {"tool_choice": choice}


def ended(api: str, body: Body, text: str) -> Body:
    """Returns the body whose answer is this text."""
    return body | _ENDS[api](text)


def capped(api: str, body: Body, max_tokens: int) -> Body:
    """Returns the body with a short answer, for one that is not streamed."""
    names = {"responses": "max_output_tokens", "messages": "max_tokens"}
    name = names.get(api, "max_tokens")
    other = {key: value for key, value in body.items() if key != "max_completion_tokens"}
    return other | {name: max_tokens}


def _narrowed(part: Any, call: Call) -> Any:
    """The part of a body, with the planned tool taking the planned arguments alone."""
    if isinstance(part, list):
        return [_narrowed(each, call) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("name", part.get("type")) == call.tool and _SCHEMAS & {*part}:
        return part | _only(call, part)
    return part | {key: _narrowed(part[key], call) for key in _HOLDERS & {*part}}


def _only(call: Call, tool: Body) -> Body:
    if isinstance(call.arguments, str):
        text = re.escape(call.arguments).replace("\\\n", "\n").replace("\\ ", " ")
        return {"format": {"type": "grammar", "syntax": "regex", "definition": text}}
    schema = {
        "type": "object",
        "properties": {name: {"const": value} for name, value in call.arguments.items()},
        "required": [*call.arguments],
        "additionalProperties": False,
    }
    return {"input_schema" if "input_schema" in tool else "parameters": schema}


def _messages_end(end: str) -> Body:
    form = {"type": "json_schema", "schema": {"const": end}}
    return {"tool_choice": {"type": "none"}, "output_config": {"format": form}}


def _responses_end(end: str) -> Body:
    form = {"type": "json_schema", "name": "end", "schema": {"const": end}}
    return {"tool_choice": "none", "text": {"format": form}}


def _chat_end(end: str) -> Body:
    return {"tool_choice": "none", "structured_outputs": {"choice": [end]}}


_ENDS: dict[str, Callable[[str], Body]] = {
    "messages": _messages_end,
    "responses": _responses_end,
    "chat/completions": _chat_end,
}


def refusal(payload: bytes) -> tuple[str, bool]:
    """Returns what an error says, and whether it tells the client another way by a code of its
    API's: Anthropic's SDKs then send the whole conversation in place of a thread."""
    try:
        error = json.loads(payload)["error"]
        details = error.get("details") or {}
        return str(error["message"]), details.get("error_code") == "thread_unsupported_request"
    except (ValueError, KeyError, TypeError, AttributeError):
        return payload[:200].decode(errors="replace"), False
