"""A model's chat template: Jinja, in a sandbox, with what publishers of models count on.

They write for transformers' `apply_chat_template`, so its additions are here too: how blocks are
trimmed, `raise_exception`, `strftime_now`, JSON as it is, `break` and `continue`, and the block
`generation`, which marks for training what a model is to write.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from inference_api.errors import StartupError
from inference_api.text.tokenizer_config import DEFAULT, WITH_TOOLS, TokenizerConfig

SIMPLEST = [{"role": "user", "content": "Hello"}]


class _MarkedBlocks(Extension):
    """`{% generation %}...{% endgeneration %}` is what stands in it."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), True), lineno=line)


class _PlainNamespace(Namespace):
    """Without names that Python or Jinja may take for a method of their own."""

    def __init__(self, /, *pairs: Any, **members: Any) -> None:
        super().__init__()
        for name, value in dict(*pairs, **members).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace has no {name!r}: it begins with an underscore")
        super().__setitem__(name, value)


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without Jinja's escapes for HTML, and in the order of the object."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(reason: str) -> None:
    raise TemplateError(reason)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_MarkedBlocks, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _as_json
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
        # The class itself would hand out methods that change what a template is given.
        "dict": lambda *pairs, **members: dict(*pairs, **members),
        "namespace": _PlainNamespace,
    }
    return environment


class ChatTemplate:
    """Immutable; any thread. What `render` raises is what the template does: anything."""

    def __init__(self, config: TokenizerConfig) -> None:
        """Raises TemplateSyntaxError."""
        self.text = config.templates.get(WITH_TOOLS) or config.templates[DEFAULT]
        environment = _environment()
        self._default = environment.from_string(config.templates[DEFAULT])
        self._with_tools = environment.from_string(self.text)
        self._special_tokens = config.special_tokens

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        template = self._with_tools if tools else self._default
        given = {
            **self._special_tokens,
            "messages": [_turn(message) for message in messages],
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return template.render(given | dict(options or {}))


def _turn(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is said in it, a thought under both names that templates have for one."""
    said = {key: value for key, value in message.items() if value is not None}
    thought = said.get("reasoning_content", said.get("thinking"))
    return said if thought is None else {"thinking": thought, **said, "reasoning_content": thought}


def read_chat_template(config: TokenizerConfig) -> ChatTemplate | None:
    """A model's own; None if it brings none. The simplest conversation is put into it, by what will
    do it for every request.

    Raises StartupError when the template is not Jinja, or breaks on one user's turn: chat could
    answer nobody then. One that refuses this turn of its own accord (it calls `raise_exception`)
    may want a system message first, say, and is left to the requests.
    """
    if not config.templates:
        return None
    try:
        template = ChatTemplate(config)
        template.render(SIMPLEST)
    except TemplateSyntaxError as error:
        fault = f"is not valid Jinja, line {error.lineno}: {error.message}"
    except Exception as error:  # whatever the template raises
        if type(error) is TemplateError:
            return template
        fault = f"cannot render one message of a user ({type(error).__name__}: {error})"
    else:
        return template
    raise StartupError(
        [
            f"The chat template in {config.template_source} {fault}; correct it or remove it: "
            "chats are then put as plain text."
        ]
    )
