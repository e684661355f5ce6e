"""Prepares conversations with tool calls for a chat template. Pure.

Some templates expect a call's arguments as an object, others as text; some accept one call per
message. For templates without tools, the tools, calls and results are written in plain messages.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_api.tools.events import Json
from inference_api.tools.formats import KIMI_PREFIX
from inference_api.tools.values import MAX_DEPTH, is_deeper_than

Message = Mapping[str, Any]  # a chat message: role, content, and fields of its role

_ID = re.compile(r"[A-Za-z0-9]{9}")
_NUMBER = re.compile(r":(\d{1,9})$")
_INSTRUCTION = (
    "You can call these tools:\n\n{tools}\n\nTo call one or more of them, answer with nothing but "
    'a JSON object: {{"tool_calls": [{{"name": "the tool\'s name", "arguments": {{...}}}}]}}. '
    "Otherwise answer as usual."
)


@dataclass(frozen=True, slots=True)
class Manners:
    """What a chat template accepts, found by rendering. `is_native`: it renders tools and calls."""

    is_native: bool = False
    wants_text_arguments: bool = False
    takes_system: bool = True
    takes_late_system: bool = True  # a system message after others
    takes_users_in_a_row: bool = True
    one_call_per_turn: bool = False
    wants_short_ids: bool = False  # ids of nine letters and digits, which Mistral's templates check
    wants_numbered_ids: bool = False  # see `ids_behind`
    takes_thoughts_beside_text: bool = True  # before calls; Harmony's template refuses both


def call_as_json(call_id: str, name: str, arguments: str) -> Message:
    """Returns a call in OpenAI's format, which chat templates expect."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def assistant_turn(text: str, thoughts: str, calls: Sequence[Message]) -> Message:
    """Returns an earlier answer as a message, without fields that would be empty."""
    fields = {"reasoning_content": thoughts, "tool_calls": calls}
    filled = {name: value for name, value in fields.items() if value}
    return {"role": "assistant", "content": text, **filled}


def has_calls(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "tool" or "tool_calls" in message for message in messages)


def prepared(messages: Sequence[Message], tools: Sequence[Json], manners: Manners) -> list[Message]:
    """Returns messages for the template. If it renders no tools, a message describes them."""
    messages = list(messages)
    if not manners.takes_thoughts_beside_text:
        messages = [_without_thoughts_beside_text(message) for message in messages]
    if not manners.takes_system:
        messages[:1] = map(_as_user_message, messages[:1])
    if not manners.takes_late_system:
        messages[1:] = map(_as_user_message, messages[1:])
    if not manners.takes_users_in_a_row:
        messages = _merged(messages)
    if not tools and not has_calls(messages):
        return messages
    if not manners.is_native:
        return _in_plain_turns(messages, tools, manners)
    turns = _one_call_each(messages) if manners.one_call_per_turn else list(messages)
    turns = _numbered(turns) if manners.wants_numbered_ids else turns
    names = _names_by_id(turns)
    return [_native(turn, names, manners) for turn in turns]


def _as_user_message(message: Message) -> Message:
    return {**message, "role": "user"} if message["role"] == "system" else message


def _without_thoughts_beside_text(message: Message) -> Message:
    if not (message["content"] and "tool_calls" in message):
        return message
    return {name: value for name, value in message.items() if name != "reasoning_content"}


def _native(message: Message, names: Mapping[str, str], manners: Manners) -> Message:
    if message["role"] == "tool":
        call_id = message["tool_call_id"]
        shown = _short_id(call_id) if manners.wants_short_ids else call_id
        named = {"name": names[call_id]} if call_id in names else {}
        return {**named, **message, "tool_call_id": shown}
    if "tool_calls" not in message:
        return message
    return {**message, "tool_calls": [_native_call(c, manners) for c in message["tool_calls"]]}


def _native_call(call: Json, manners: Manners) -> Json:
    arguments = call["function"]["arguments"]
    if not manners.wants_text_arguments:
        arguments = as_object(arguments)
    call_id = _short_id(call["id"]) if manners.wants_short_ids else call["id"]
    return {**call, "id": call_id, "function": {**call["function"], "arguments": arguments}}


def as_object(arguments: str) -> Any:
    """Returns the object in a JSON text, if it can be rendered; otherwise the text."""
    try:
        parsed = json.loads(arguments or "{}")
        json.dumps(parsed, ensure_ascii=False).encode()  # raises for half of a surrogate pair
    except (ValueError, RecursionError):
        return arguments
    is_usable = isinstance(parsed, dict) and not is_deeper_than(parsed, MAX_DEPTH)
    return parsed if is_usable else arguments


def _short_id(call_id: str) -> str:
    """Returns the id if it is nine letters and digits, else a stable hash of that length."""
    if _ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def ids_behind(messages: Sequence[Message]) -> Callable[[str], str]:
    """Returns a function that makes an id in Kimi's form for a further call of a named function.

    Numbers run through the conversation. None comes twice, even if messages have been left out.
    """
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    found = [int(match[1]) + 1 for each in ids if (match := _NUMBER.search(each))]
    numbers = itertools.count(max([len(ids), *found]))
    return lambda name: f"{KIMI_PREFIX}{name}:{next(numbers)}"


def _numbered(messages: Sequence[Message]) -> list[Message]:
    """Gives calls and results ids in Kimi's form, which its templates write, in place of any."""
    new_id, shown = ids_behind(()), dict[str, str]()
    numbered: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            message = {**message, "tool_call_id": shown.get(call_id, call_id)}
        elif "tool_calls" in message:
            calls = message["tool_calls"]
            ids = [new_id(call["function"]["name"]) for call in calls]
            shown |= {call["id"]: each for call, each in zip(calls, ids, strict=True)}
            calls = [{**call, "id": each} for call, each in zip(calls, ids, strict=True)]
            message = {**message, "tool_calls": calls}
        numbered.append(message)
    return numbered


def _names_by_id(messages: Sequence[Message]) -> dict[str, str]:
    return {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls", ())
    }


def _one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Splits a message with several calls into one for each call, followed by its result."""
    turns: list[Message] = []
    waiting: list[Message] = []  # single calls whose results have not come yet
    for message in messages:
        if message["role"] != "tool":
            turns += waiting
            waiting = _split(message)
            continue
        while (
            waiting and waiting[0].get("tool_calls", [{}])[0].get("id") != message["tool_call_id"]
        ):
            turns.append(waiting.pop(0))
        turns += [*waiting[:1], message]
        del waiting[:1]
    return turns + waiting


def _split(message: Message) -> list[Message]:
    calls = message.get("tool_calls", ())
    if len(calls) < 2:
        return [message]
    bare = {"role": message["role"], "content": ""}
    return [{**(bare if number else message), "tool_calls": [c]} for number, c in enumerate(calls)]


def _in_plain_turns(
    messages: Sequence[Message], tools: Sequence[Json], manners: Manners
) -> list[Message]:
    names = _names_by_id(messages)
    turns = [_plain(message, names) for message in messages]
    if tools:
        described = json.dumps([each["function"] for each in tools], ensure_ascii=False)
        text = _INSTRUCTION.format(tools=described)
        if turns[0]["role"] == "system":
            turns[0] = {**turns[0], "content": f"{turns[0]['content']}\n\n{text}"}
        else:
            turns.insert(0, {"role": "system", "content": text})
    if not manners.takes_system and turns[0]["role"] == "system":
        turns[0] = {**turns[0], "role": "user"}
    return _merged(turns)


def _plain(message: Message, names: Mapping[str, str]) -> Message:
    if message["role"] == "tool":
        call_id = message["tool_call_id"]
        text = f"Result of {names.get(call_id, call_id)}:\n{message['content']}"
        return {"role": "user", "content": text}
    if "tool_calls" not in message:
        return message
    calls = [
        {"name": each["function"]["name"], "arguments": as_object(each["function"]["arguments"])}
        for each in message["tool_calls"]
    ]
    written = json.dumps({"tool_calls": calls}, ensure_ascii=False)
    content = f"{message['content']}\n{written}" if message["content"] else written
    return {"role": "assistant", "content": content}


def _merged(turns: Sequence[Message]) -> list[Message]:
    """Joins consecutive user messages, because many templates expect roles to alternate."""
    merged: list[Message] = []
    for turn in turns:
        last = merged[-1] if merged else None
        if last is not None and last["role"] == turn["role"] == "user":
            merged[-1] = {**last, "content": f"{last['content']}\n\n{turn['content']}"}
        else:
            merged.append(turn)
    return merged
