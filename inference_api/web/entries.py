"""Handles entries of lists that cannot be read or run here: they are removed, or replaced by a
text, and reported either way."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, Field, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from inference_api.web.fields import fault
from inference_api.web.left_aside import LeftAside

# Types of content, in any of the APIs, that are not text.
MEDIA = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
    **dict.fromkeys(("document", "file", "input_file"), "file"),
}
# Parts that hold one text, and the field it is in. Anthropic's summary of what went before may be
# missing; OpenAI's is encrypted.
ONE_TEXT = {"refusal": "refusal", "compaction": "content"}
ENCRYPTED = frozenset({"compaction", "encrypted_content", "redacted_thinking"})
# Blocks of earlier answers about work of Anthropic's servers: tools they ran, content they keep.
FOREIGN_BLOCKS = ENCRYPTED | {
    *("advisor_tool_result", "bash_code_execution_tool_result", "browser_state"),
    *("code_execution_tool_result", "container_upload", "fallback", "mcp_tool_listing"),
    *("mcp_tool_result", "mcp_tool_use", "server_tool_use", "tool_search_tool_result"),
    *("text_editor_code_execution_tool_result", "web_fetch_tool_result", "web_search_tool_result"),
}


def of_list(read: Callable[[list[Any], ValidationInfo], Iterable[Any]]) -> BeforeValidator:
    """Returns a validator that replaces a list by the entries that `read` returns for it."""
    return BeforeValidator(
        lambda value, info: list(read(value, info)) if isinstance(value, list) else value
    )


def read_parts(kind: type[BaseModel], left_out: Collection[str] = ENCRYPTED) -> BeforeValidator:
    """Returns the validator of a list of parts. A part that is not text becomes a text that says
    so; parts of the types in `left_out` are removed. Both are reported as fields of `kind`."""

    def read(parts: list[Any], info: ValidationInfo) -> Iterator[Any]:
        for part in parts:
            type_ = type_of(part)
            if isinstance(part, str):
                yield {"type": "text", "text": part}
            elif (inner := _parts_within(part)) is not None:
                aside_of(info, kind).add(kind, "citations", part.get("citations", ""))
                yield from read(inner, info)
            elif type_ in MEDIA:
                aside = aside_of(info, kind)
                if aside.rules.refuses_images:
                    raise fault(type_, "is no text, which is all that is read here; leave it out")
                aside.add(kind, type_)
                text = f"[{MEDIA[type_]} left out: this model reads text only]"
                yield {"type": "text", "text": text}
            elif type_ in left_out or _is_hosted(part):
                aside_of(info, kind).add(kind, type_)
            else:
                yield part

    return of_list(read)


def only(types: Collection[str], kind: type[BaseModel]) -> BeforeValidator:
    """Returns the validator of a list that removes entries of other types, such as tools that only
    another server can run, and reports them as fields of `kind`. Entries without a type stay."""

    def read(entries: list[Any], info: ValidationInfo) -> Iterator[Any]:
        for entry in entries:
            type_ = type_of(entry)
            if (type_ in types or type_ == "") and not _is_hosted(entry):
                yield entry
            else:
                aside_of(info, kind).add(kind, type_, is_known=False)

    return of_list(read)


@dataclass(frozen=True, slots=True)
class ByForm:
    """Annotates a union. A value is read as the member of its own form alone, so that a refusal is
    about that one. `forms` are those of the members, in the union's order."""

    forms: tuple[str, ...]
    form_of: Callable[[Any], str | None]
    error_type: str
    message: str  # about a value of no such form

    def __get_pydantic_core_schema__(self, union: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members = zip(self.forms, get_args(union), strict=True)
        return core_schema.tagged_union_schema(
            # In brackets, because the path of a fault has them, and they are no fields.
            {f"<{form}>": handler.generate_schema(member) for form, member in members},
            lambda value: f"<{self.form_of(value)}>",
            custom_error_type=self.error_type,
            custom_error_message=self.message,
        )


def text_or(a_list: str, error_type: str) -> ByForm:
    """Returns the annotation of a text or a list. `a_list` says in a refusal what may be given
    instead of a text."""

    def form_of(value: Any) -> str | None:
        if isinstance(value, str):
            return "text"
        return "list" if isinstance(value, list) else None

    return ByForm(("text", "list"), form_of, error_type, f"give a text or {a_list}")


def by_type(union: Any, error_type: str | None = None, more: str = "") -> ByForm:
    """Returns the annotation of this union of objects that have a `type`. Others are read as the
    first member, or refused if there is an `error_type`; `more` is said then."""
    first, *_ = kinds = get_args(union)
    types = [(kind, kind.model_fields["type"]) for kind in kinds]
    form_by_type: dict[str, str] = {
        type_: kind.__name__ for kind, field in types for type_ in get_args(field.annotation)
    }
    others: str | None = None if error_type else first.__name__
    untyped = form_by_type.get(first.model_fields["type"].default, others)

    def form_of(value: Any) -> str | None:
        if isinstance(value, dict) and not type_of(value):
            return untyped
        return form_by_type.get(type_of(value), others)

    message = f"is of a type that is not served; give {', '.join(form_by_type)}{more}"
    names = tuple(kind.__name__ for kind in kinds)
    return ByForm(names, form_of, error_type or "type", message)


def _filled(value: Any) -> Any:
    if isinstance(value, list):
        return [each for each in value if each != ""]
    return None if value == "" else value


# For stop strings: clients with forms send empty ones, which would end every answer.
FILLED = BeforeValidator(_filled)
MAX_STOP_CHARS = 1024  # the end of an answer is compared with each beginning of a stop string
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


def aside_of(info: ValidationInfo, kind: type[BaseModel]) -> LeftAside:
    return info.context if isinstance(info.context, LeftAside) else LeftAside(kind)


def type_of(entry: Any) -> str:
    """Returns an entry's type; empty if it has none."""
    type_ = entry.get("type") if isinstance(entry, dict) else None
    return type_ if isinstance(type_, str) else ""


def _is_hosted(entry: Any) -> bool:
    """Whether this is a tool search of OpenAI's servers, or about one. By default they run it."""
    type_ = type_of(entry)
    execution = entry.get("execution") if type_.startswith("tool_search") else "client"
    return execution == "server" or (type_ == "tool_search" and not execution)


def _parts_within(part: Any) -> list[Any] | None:
    """Returns the text of a part of ONE_TEXT, or the texts in Anthropic's search results and
    documents that have texts or lists of parts: below their titles, on lines of their own."""
    field = ONE_TEXT.get(type_of(part))
    if field and isinstance(part.get(field), str):
        return [part[field]]
    if type_of(part) not in ("search_result", "document"):
        return None
    source = part.get("source")
    holder = source if isinstance(source, dict) else part
    content = holder.get("data" if type_of(source) == "text" else "content")
    if not isinstance(content, str | list):
        return None
    parts = [content] if isinstance(content, str) else content
    named = [part.get("title"), source, part.get("context")]
    heads = [f"{each}\n" for each in named if isinstance(each, str)]
    return [*heads, *parts, "\n"] if heads else parts
