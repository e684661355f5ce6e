"""Renders a model's own chat template, which is Jinja."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from inference_api.errors import StartupError
from inference_api.loading.tokenizer_files import MAX_TEMPLATE_BYTES
from inference_api.text.bounded_jinja import BoundedJinja, allowance
from inference_api.text.tokenizer_config import DEFAULT, WITH_TOOLS, TokenizerConfig

SIMPLEST = [{"role": "user", "content": "Hello"}]


class ChatTemplate:
    """A compiled template. Immutable; any thread. `render` raises anything the template raises."""

    def __init__(self, config: TokenizerConfig) -> None:
        """Raises TemplateSyntaxError."""
        self.text = config.templates.get(WITH_TOOLS) or config.templates[DEFAULT]
        jinja = BoundedJinja()
        self._default = jinja.compiled(config.templates[DEFAULT])
        self._with_tools = jinja.compiled(self.text)
        self._special_tokens = config.special_tokens

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        template = self._with_tools if tools else self._default
        variables = {
            **self._special_tokens,
            "messages": [_turn(message) for message in messages],
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return template.render({**variables, **(options or {}), **allowance()})


def _turn(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message with its thought under both names that templates use."""
    turn = {key: value for key, value in message.items() if value is not None}
    thought = turn.get("reasoning_content", turn.get("thinking"))
    return turn if thought is None else {"thinking": thought, **turn, "reasoning_content": thought}


def read_chat_template(config: TokenizerConfig) -> ChatTemplate | None:
    """Returns a model's own template, or None. Renders the simplest conversation to check it.

    Raises StartupError if the template is not Jinja, or breaks on a single user message: chat would
    then fail for every request. A template that refuses the message by `raise_exception` is
    accepted, because it may require a system message, for example.
    """
    if not config.templates:
        return None
    longest = max(len(text.encode()) for text in config.templates.values())
    if longest > MAX_TEMPLATE_BYTES:
        raise StartupError(
            f"The chat template in {config.template_source} has {longest} bytes, more than "
            f"{MAX_TEMPLATE_BYTES}; get the file again."
        )
    try:
        template = ChatTemplate(config)
        template.render(SIMPLEST)
    except TemplateSyntaxError as error:
        fault = f"is not valid Jinja, line {error.lineno}: {error.message}"
    except Exception as error:  # a template may raise anything
        if type(error) is TemplateError:
            return template
        fault = f"cannot render one message of a user ({type(error).__name__}: {error})"
    else:
        return template
    raise StartupError(
        f"The chat template in {config.template_source} {fault}; correct it or remove it: "
        "chats are then put as plain text."
    )
