"""Conversations as token ids: only a chat template writes special tokens, never a message.

A message may say `<|assistant|>` or `</s>`. Encoded with the rest it would end its turn and begin
another, so that whoever wrote it speaks for the model or the operator.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from inference_api.errors import InvalidRequest
from inference_api.text.special_tokens import SpecialTokens, encoded

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from transformers import TokenizersBackend

Message = Mapping[str, str]  # of a chat: its role and content, and perhaps a name
Template = Callable[[Sequence[Message]], str]

SPEAKERS = {"user": "User", "assistant": "AI", "system": "System"}
USER_TEXTS = ("content", "name")  # the role is one of ours


def plain_chat_prompt(messages: Sequence[Message]) -> str:
    """For models that bring no chat template."""
    turns = [f"{SPEAKERS[message['role']]}: {message['content']}\n" for message in messages]
    return "".join(turns) + f"{SPEAKERS['assistant']}: "


def check_names(messages: Sequence[Message], named_roles: frozenset[str]) -> None:
    """Raises InvalidRequest for a name that would not be read."""
    for number, message in enumerate(messages):
        if "name" in message and message["role"] not in named_roles:
            raise InvalidRequest(
                f"messages[{number}].name: this model's chat template has no place for the name of "
                f"a message of role {message['role']}; leave it out.",
                "messages",
            )


def template_of(wrapper: "TokenizersBackend") -> Template | None:
    """A model's own; None if it brings none. Calling it raises InvalidRequest when the template
    refuses the messages."""

    def render(messages: Sequence[Message]) -> str:
        try:
            prompt = wrapper.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # of whatever the template does with these messages
            raise InvalidRequest(
                f"The model's chat template refuses the messages: {error}.", "messages"
            ) from error
        return str(prompt)

    return None if wrapper.chat_template is None else render


class ChatPrompts:
    """Immutable; any thread."""

    def __init__(self, backend: "Backend", template: Template | None) -> None:
        self._backend = backend
        self._render = template or plain_chat_prompt
        self._adds_special_tokens = template is None  # a template writes all it wants
        self._specials = SpecialTokens(backend, self._adds_special_tokens)
        self._named_roles = _named_roles(self._render)

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Ready for the answer. Raises InvalidRequest when the template refuses the messages, has
        no place for a name, or a message cannot be kept apart from special tokens."""
        check_names(messages, self._named_roles)
        hidden = [self._hide(message) for message in messages]
        prompt = self._render(hidden)
        written = self._specials.find(prompt)
        if hidden == list(messages):
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

    def _hide(self, message: Message) -> Message:
        texts = {key: self._specials.hide(message[key]) for key in USER_TEXTS if key in message}
        return {**message, **texts}


def _named_roles(render: Template) -> frozenset[str]:
    """The roles of messages whose names change what a template writes."""
    return frozenset(role for role in SPEAKERS if _writes_name(render, role))


def _writes_name(render: Template, role: str) -> bool:
    before = [{"role": "user", "content": "a"}] if role == "assistant" else []
    after = [{"role": "user", "content": "a"}] if role != "user" else []
    turn = {"role": role, "content": "a"}
    try:
        plain = render([*before, turn, *after])
        return render([*before, {**turn, "name": "b"}, *after]) != plain
    except InvalidRequest:
        return False
