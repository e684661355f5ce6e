"""Renders a model's chat template, which is Jinja, in a sandbox.

Templates are written for transformers' `apply_chat_template`, so its additions are here, too:
trimmed blocks, `raise_exception`, `strftime_now`, unescaped JSON, `break` and `continue`, and the
block `generation`, which marks the model's text for training. Loops and calls are counted, so that
no template runs for ever.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from inference_api.errors import StartupError
from inference_api.loading.tokenizer_files import MAX_TEMPLATE_BYTES
from inference_api.text.tokenizer_config import DEFAULT, WITH_TOOLS, TokenizerConfig

SIMPLEST = [{"role": "user", "content": "Hello"}]
MAX_TURNS = 5_000_000  # loop turns and calls for one conversation, which take a few seconds
TURNS_LEFT = "turns left"  # a variable that no template can name


class _MarkedBlocks(Extension):
    """Renders `{% generation %}...{% endgeneration %}` as its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), True), lineno=line)


class _PlainNamespace(Namespace):
    """A namespace without names that begin with an underscore, which Python or Jinja might take
    for methods of their own."""

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
    """Writes JSON without HTML escapes, in the order of the object."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(reason: str) -> None:
    raise TemplateError(reason)


class TooManyTurns(TemplateError):
    def __init__(self) -> None:
        super().__init__(f"takes more than {MAX_TURNS} turns of loops and calls")


def _count_turn(context: Context) -> None:
    if next(context[TURNS_LEFT], None) is None:
        raise TooManyTurns


@pass_context
def _counted(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    for each in values:
        _count_turn(context)
        yield each


class _Environment(ImmutableSandboxedEnvironment):
    def __init__(self) -> None:
        extensions: list[type[Extension] | str] = [_MarkedBlocks, "jinja2.ext.loopcontrols"]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self.filters |= {"tojson": _as_json, "counted": _counted}
        self.globals |= {
            "raise_exception": _refuse,
            "strftime_now": lambda form: datetime.now().strftime(form),
            # Exposing the class itself would expose methods that change the template's inputs.
            "dict": lambda *pairs, **members: dict(*pairs, **members),
            "namespace": _PlainNamespace,
        }

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        _count_turn(context)
        return super().call(context, called, *args, **kwargs)

    def compiled(self, text: str) -> Template:
        """Returns a template, whose loops are counted. Raises TemplateSyntaxError."""
        tree = self.parse(text)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
        return self.from_string(tree)


class ChatTemplate:
    """A compiled template. Immutable; any thread. `render` raises anything the template raises."""

    def __init__(self, config: TokenizerConfig) -> None:
        """Raises TemplateSyntaxError."""
        self.text = config.templates.get(WITH_TOOLS) or config.templates[DEFAULT]
        environment = _Environment()
        self._default = environment.compiled(config.templates[DEFAULT])
        self._with_tools = environment.compiled(self.text)
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
            TURNS_LEFT: iter(range(MAX_TURNS)),
        }
        return template.render(given | dict(options or {}))


def _turn(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message with its thought under both names that templates use."""
    said = {key: value for key, value in message.items() if value is not None}
    thought = said.get("reasoning_content", said.get("thinking"))
    return said if thought is None else {"thinking": thought, **said, "reasoning_content": thought}


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
