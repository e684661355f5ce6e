"""Encodes conversations so that only the chat template writes special tokens, never a message.

A message may contain `<|assistant|>` or `</s>`. If that were encoded with the rest, it would end
the message and begin another one, and its author could speak for the model or the operator. The
same holds for tools, their calls and results, and everything else that a client gives to the
template.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from jinja2 import TemplateError

from inference_api.errors import InvalidRequest
from inference_api.text.chat_template import ChatTemplate
from inference_api.text.special_tokens import SpecialTokens, encoded, private_text
from inference_api.tools.dialects import GENERIC, MISTRAL, Dialect, dialect_of, thought_of
from inference_api.tools.events import Json, Tool
from inference_api.tools.history import Manners, Message, prepared

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

Template = Callable[[Sequence[Message], "Extras"], str]

MAX_REASON = 300  # characters
SPEAKERS = {"user": "User", "assistant": "AI", "system": "System"}


Ending = Literal["answer", "closed", "open"]
"""How a prompt ends: where an answer begins, after the last message, or within the last message,
which the answer continues."""


@dataclass(frozen=True, slots=True)
class Extras:
    """Inputs of a template besides messages: tools in OpenAI's format, the template's own options,
    and how the prompt ends. `on_rendered` is called with the prompt's text before it is encoded,
    which an error that it raises prevents."""

    tools: Sequence[Json] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    ending: Ending = "answer"
    on_rendered: Callable[[str], None] = lambda prompt: None


NO_EXTRAS = Extras()


def plain_chat_prompt(messages: Sequence[Message], extras: Extras = NO_EXTRAS) -> str:
    """Renders messages for models without a chat template."""
    turns = [f"{SPEAKERS[message['role']]}: {message['content']}\n" for message in messages]
    return "".join(turns) + (f"{SPEAKERS['assistant']}: " if extras.ending == "answer" else "")


def texts_in(value: object) -> Iterator[str]:
    """Yields every text in a JSON value, including names of members."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield key
            yield from texts_in(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from texts_in(child)


def render_template(template: ChatTemplate, messages: Sequence[Message], extras: Extras) -> str:
    """Renders messages. Raises InvalidRequest if the template refuses them."""
    options = {"xml_tools": extras.tools} if extras.tools else {}  # SmolLM3's name for them
    try:
        return template.render(
            messages, extras.tools, extras.ending == "answer", {**options, **extras.options}
        )
    except MemoryError:
        raise
    except Exception as error:  # a template may raise anything
        is_refusal = isinstance(error, TemplateError)  # its own, or for a missing name
        reason = str(error)[:MAX_REASON] if is_refusal else f"{type(error).__name__} in it"
        raise InvalidRequest(
            f"The model's chat template refuses the messages: {reason}.", "messages"
        ) from error


def rendered(render: Template, messages: Sequence[Message], extras: Extras) -> str:
    """Returns the template's text; with an open last message, only up to the end of that message.

    Raises InvalidRequest if the template refuses the messages, or leaves out the last one's text.
    """
    if extras.ending != "open":
        return render(messages, extras)
    *before, last = messages
    mark = private_text()
    prompt = render([*before, {**last, "content": last["content"] + mark}], extras)
    written, found, _ = prompt.rpartition(mark)
    if not found:
        raise InvalidRequest(
            "The last message cannot be gone on with: this model's chat template leaves out its "
            "text; end with a user's message.",
            "messages",
        )
    return written


class ChatPrompts:
    """Encodes conversations for one model. Immutable; any thread."""

    def __init__(self, backend: "Backend", template: ChatTemplate | None) -> None:
        self._backend = backend
        self._render: Template = (
            partial(render_template, template) if template else plain_chat_prompt
        )
        self._adds_special_tokens = template is None  # a template writes all special tokens itself
        text = template.text if template else None
        self._specials = SpecialTokens(backend, self._adds_special_tokens)
        dialect = dialect_of(text)
        self._manners = manners_of(self._render, dialect)
        if not self._manners.is_native and dialect.name != "harmony":
            dialect = GENERIC
        self.dialect = replace(
            dialect,
            thought=thought_of(text),
            words=frozenset(re.findall(r"\w+", text or "")),
            named_roles=frozenset(r for r in SPEAKERS if _writes_name(self._render, r)),
        )

    def encode(self, messages: Sequence[Message], extras: Extras = NO_EXTRAS) -> list[int]:
        """Returns the prompt of a conversation. Raises InvalidRequest if the template refuses the
        messages, or a text cannot be kept apart from special tokens."""
        turns = prepared(messages, extras.tools, self._manners)
        shown = extras if self._manners.is_native else replace(extras, tools=())
        hidden, hidden_extras = self._hidden(turns, shown)
        prompt = rendered(self._render, hidden, hidden_extras)
        extras.on_rendered(prompt)
        written = self._specials.find(prompt)
        if hidden == turns and hidden_extras == shown:
            ids = encoded(self._backend, prompt, self._adds_special_tokens)
            if self._specials.are_written(ids, prompt, written):
                return ids
        ids = self._specials.encode(prompt, written)
        if not self._specials.are_written(ids, prompt, written):
            raise InvalidRequest(
                "A message has the text of a special token, which this model's tokenizer cannot "
                "encode as text; leave it out.",
                "messages",
            )
        return ids

    def _hidden(self, turns: list[Message], extras: Extras) -> tuple[list[Message], Extras]:
        """Returns the template's inputs with nothing in them that reads like a special token.

        All texts are searched at once, because schemas have thousands and rarely one to hide.
        """
        if not self._specials.find("\n".join(texts_in([turns, extras.tools, extras.options]))):
            return turns, extras
        hidden: list[Message] = [
            {**self._hide(turn), "role": turn["role"]}
            for turn in turns  # roles are checked, and need no hiding
        ]
        tools, options = self._hide(list(extras.tools)), self._hide(dict(extras.options))
        return hidden, replace(extras, tools=tools, options=options)

    def _hide(self, value: Any) -> Any:
        """Returns the value with look-alikes of special tokens replaced by placeholders."""
        if isinstance(value, str):
            return self._specials.hide(value)
        if isinstance(value, Mapping):
            return {self._specials.hide(key): self._hide(each) for key, each in value.items()}
        return [self._hide(child) for child in value] if isinstance(value, list) else value


def _writes_name(render: Template, role: str) -> bool:
    """Returns whether the template writes the names of this role's messages."""
    before = [{"role": "user", "content": "a"}] if role == "assistant" else []
    after = [{"role": "user", "content": "a"}] if role != "user" else []
    turn = {"role": role, "content": "a"}
    try:
        plain = render([*before, turn, *after], NO_EXTRAS)
        return render([*before, {**turn, "name": "b"}, *after], NO_EXTRAS) != plain
    except InvalidRequest:
        return False


TRIED = "tried-content"
_TRIED_TOOL = Tool(
    "tried_tool", "tried-description", {"type": "object", "properties": {}}
).as_json()


def manners_of(render: Template, dialect: Dialect) -> Manners:
    """Returns which tool features the template supports, found by rendering some."""
    user = {"role": "user", "content": "a"}
    system, first = ({"role": role, "content": TRIED} for role in ("system", "user"))
    manners = Manners(
        takes_system=_renders(render, [system, user], ()),
        takes_late_system=_renders(render, [user, system, user], ()),
        takes_users_in_a_row=_renders(render, [first, user], ()),
        one_call_per_turn=dialect.one_call_per_turn,
        wants_short_ids=dialect.read is MISTRAL.read,
        wants_numbered_ids=dialect.name == "kimi",
        takes_thoughts_beside_text=dialect.name != "harmony",
    )
    for wants_text in (False, True):
        tried = replace(manners, is_native=True, wants_text_arguments=wants_text)
        call = {"name": "tried_tool", "arguments": '{"a": "tried-value"}'}
        calls = [{"id": "tried1234", "type": "function", "function": call}]
        turns: list[Message] = [
            user,
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "tried1234", "content": "tried-result"},
        ]
        if _renders(render, prepared(turns, [_TRIED_TOOL], tried), [_TRIED_TOOL]):
            return tried
    return manners


def _renders(render: Template, turns: Sequence[Message], tools: Sequence[Json]) -> bool:
    """Returns whether the prompt contains everything that was put into it."""
    try:
        prompt = render(turns, Extras(tools))
    except (InvalidRequest, KeyError):  # the plain template has no messages of tools
        return False
    wanted = ("tried-description", "tried-value", "tried-result") if tools else (TRIED,)
    return all(each in prompt for each in wanted)
