"""Describes as plain functions the tools that clients run but name in requests by type alone.

Source of names and arguments: Anthropic's documentation of each tool.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from inference_api.web.entries import type_of

Json = dict[str, Any]

SEARCH = "tool_search_tool_"  # prefix of the searches that Anthropic's servers run

_TEXT: Json = {"type": "string"}
_LINES: Json = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_EDITS: Json = {
    "path": _TEXT,
    "file_text": _TEXT | {"description": "The new file's text, for create."},
    "old_str": _TEXT | {"description": "The text to replace, for str_replace."},
    "new_str": _TEXT | {"description": "What takes its place, for str_replace."},
    "insert_line": {"type": "integer", "description": "The line to insert after; 0: at the top."},
    "insert_text": _TEXT | {"description": "The text to insert, for insert."},
    "view_range": _LINES | {"description": "First and last line to view; -1: to the end."},
}


def _commands(*names: str) -> Json:
    return {"type": "string", "enum": list(names)}


def _function(description: str, required: tuple[str, ...], **properties: Json) -> Json:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"description": description, "input_schema": schema}


_EDIT_COMMANDS = ("view", "create", "str_replace", "insert")
FUNCTIONS: Mapping[str, Json] = {
    "bash_": _function(
        "Run a command in a bash session that lasts.", (), command=_TEXT,
        restart={"type": "boolean", "description": "Begin a new session."},
    ),
    "text_editor_": _function(
        "View and edit files.", ("command", "path"), command=_commands(*_EDIT_COMMANDS), **_EDITS
    ),
    "memory_": _function(
        "View and edit the files of the memory, which lie under /memories.", ("command",),
        command=_commands(*_EDIT_COMMANDS, "delete", "rename"), **_EDITS,
        old_path=_TEXT, new_path=_TEXT,
    ),
}  # fmt: skip


def plain_tools(tools: list[Any]) -> Iterator[tuple[Any, str]]:
    """Yields for each tool its plain definition and its type.

    The definition is None if only Anthropic's servers could run the tool. If one of these is a tool
    search, all tools are offered from the start.
    """
    searches = any(type_of(tool).startswith(SEARCH) for tool in tools)
    for tool in tools:
        type_ = type_of(tool)
        plain = next((each for prefix, each in FUNCTIONS.items() if type_.startswith(prefix)), None)
        if plain is not None:
            tool = {key: value for key, value in tool.items() if key != "type"} | plain
        elif type_ not in ("", "custom"):
            tool = None
        if searches and isinstance(tool, dict):
            tool = {key: value for key, value in tool.items() if key != "defer_loading"}
        yield tool, type_
