"""Jinja in a sandbox whose loops, calls and characters are counted.

So no template runs for ever, nor makes of a few messages a text of gigabytes. Templates are written
for transformers' `apply_chat_template`, so its additions are here, too: trimmed blocks,
`raise_exception`, `strftime_now`, unescaped JSON, `break` and `continue`, and the block
`generation`, which marks the model's text for training.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_TURNS = 5_000_000  # loop turns and calls for one conversation, which take a few seconds
MAX_CHARS = 2**26  # in all texts and lists made for one conversation, parts of others too
ALLOWANCE = "its allowance"  # a variable that no template can name
# Filters and methods that write a value as many times, or in a field as wide, as a number says.
WIDENING = frozenset(
    {"batch", "center", "expandtabs", "indent", "ljust", "rjust", "slice", "to_bytes", "tojson"}
    | {"wordwrap", "zfill"}
)
# A width of five digits or from an argument, in a format for `%` or for `format`.
_WIDE = re.compile(
    r"%(?:\([^()]{0,99}\))?[-+ #0-9.]{0,99}(?:\*|\d{5})"
    r"|\{[^{}]{0,99}:[^{}]{0,99}(?:\d{5}|\{)"
)


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


class RendersTooMuch(TemplateError):
    def __init__(self, limit: str) -> None:
        super().__init__(f"takes more than {limit}; send fewer or shorter messages")


@dataclass(slots=True)
class _Allowance:
    """What one rendering may still take. Used by one thread."""

    num_turns: int
    num_chars: int

    @staticmethod
    def of(context: Context) -> "_Allowance":
        allowance: _Allowance = context.parent[ALLOWANCE]
        return allowance

    def count_turn(self) -> None:
        self.num_turns -= 1
        if self.num_turns < 0:
            raise RendersTooMuch(f"{MAX_TURNS} turns of loops and calls")

    def count(self, value: Any) -> Any:
        """Returns a value that the template has made, or keeps."""
        self.check(num_chars := _size(value))
        self.num_chars -= num_chars
        return value

    def check(self, num_chars: int) -> None:
        """Raises RendersTooMuch if so many more characters are too many."""
        if num_chars > self.num_chars:
            raise RendersTooMuch(f"{MAX_CHARS} characters of text")

    def check_result(self, name: str, value: Any, arguments: Sequence[Any]) -> None:
        """Raises RendersTooMuch if a filter or method would make much of this value at once."""
        if name == "replace" and len(arguments) > 1:
            self.check(str(value).count(str(arguments[0])) * _size(arguments[1]))
        elif name == "join":
            values = (value, *arguments)
            parts = [part for each in values if isinstance(each, list | tuple) for part in each]
            longest = max([len(each) for each in values if isinstance(each, str)], default=0)
            self.check(sum(map(_size, parts)) + longest * len(parts))
        elif name in WIDENING:
            widths = [each if isinstance(each, int) else _size(each) for each in arguments]
            self.check(max(_size(value), 1) * max(widths, default=0))
        elif name in ("format", "format_map") and _WIDE.search(str(value)):
            self.check(MAX_CHARS + 1)


def _size(value: Any) -> int:
    """Returns the characters of a text, or the number that costs as much as this list or integer:
    an entry takes eight bytes, and multiplying takes time by the square of the bits."""
    if isinstance(value, int):
        return value.bit_length() ** 2
    if isinstance(value, list | tuple):
        return 4 * len(value)
    return len(value) if isinstance(value, str | bytes) else 0


def allowance() -> dict[str, Any]:
    """Returns the variable that bounds one rendering, which each has to have."""
    return {ALLOWANCE: _Allowance(MAX_TURNS, MAX_CHARS)}


@pass_context
def _turns(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    allowance = _Allowance.of(context)
    for each in values:
        allowance.count_turn()
        yield each


@pass_context
def _counted(context: Context, value: Any) -> Any:
    return _Allowance.of(context).count(value)


@pass_context
def _counted_text(context: Context, value: Any) -> Any:
    return _Allowance.of(context).count(value if isinstance(value, str) else str(value))


_PASSED: Mapping[str, Callable[[Context], Any]] = {  # what filters may get as their first argument
    "context": lambda context: context,
    "environment": lambda context: context.environment,
    "eval_context": lambda context: context.eval_ctx,
}


def _counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a filter whose results are counted."""
    first = getattr(getattr(function, "jinja_pass_arg", None), "name", None)
    is_amplifier = name in WIDENING | {"format", "join", "replace"}

    @pass_context
    def counting(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        allowance = _Allowance.of(context)
        if is_amplifier:
            value = list(value) if name == "join" else value
            allowance.check_result(name, value, (*args, *kwargs.values()))
        passed = [_PASSED[first](context)] if first else []
        return allowance.count(function(*passed, value, *args, **kwargs))

    return counting


def _joined(pieces: Iterable[str]) -> str:
    """Returns the text of the template, or of a block of it."""
    num_chars, kept = 0, list[str]()
    for piece in pieces:
        num_chars += len(piece)
        if num_chars > MAX_CHARS:
            raise RendersTooMuch(f"{MAX_CHARS} characters of text")
        kept.append(piece)
    return "".join(kept)


class BoundedJinja(ImmutableSandboxedEnvironment):
    """Compiles templates whose renderings are bounded by `allowance`. Immutable; any thread."""

    intercepted_binops = frozenset({"*", "**", "%"})
    concat = staticmethod(_joined)

    def __init__(self) -> None:
        extensions: list[type[Extension] | str] = [_MarkedBlocks, "jinja2.ext.loopcontrols"]
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_counted_text
        )
        filters = {**self.filters, "tojson": _as_json}
        self.filters = {name: _counting(name, each) for name, each in filters.items()}
        self.filters |= {"turns": _turns, "counted": _counted}
        self.globals |= {
            "raise_exception": _refuse,
            "strftime_now": lambda form: datetime.now().strftime(form),
            # Exposing the class itself would expose methods that change the template's inputs.
            "dict": lambda *pairs, **members: dict(*pairs, **members),
            "namespace": _PlainNamespace,
        }
        del self.globals["lipsum"]  # makes texts of any length in one call

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        allowance = _Allowance.of(context)
        allowance.count_turn()
        for each in (*args, *kwargs.values()):
            allowance.count(each)
        method = getattr(called, "__wrapped__", called)  # the sandbox wraps `format`
        value = getattr(method, "__self__", None)
        if isinstance(value, str | int):
            allowance.check_result(method.__name__, value, (*args, *kwargs.values()))
        return allowance.count(super().call(context, called, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        allowance = _Allowance.of(context)
        match operator, left, right:
            case "%", str(), _:
                allowance.check_result("format", left, ())
            case "*", int(), str() | list() | tuple():
                allowance.check(left * len(right))
            case "*", str() | list() | tuple(), int():
                allowance.check(len(left) * right)
            case "**", int(), int():
                allowance.check((left.bit_length() * right) ** 2)
        return super().call_binop(context, operator, left, right)

    def compiled(self, text: str) -> Template:
        """Returns a template whose loops and texts are counted. Raises TemplateSyntaxError."""
        tree = self.parse(text)
        for loop in tree.find_all(nodes.For):
            loop.iter = _filtered(loop.iter, "turns")
        for concat in tree.find_all(nodes.Concat):
            concat.nodes = [_filtered(nodes.List(concat.nodes), "join")]
        for part in tree.find_all(nodes.Getitem):
            if isinstance(part.arg, nodes.Slice):
                part.node = _filtered(part.node, "counted")
        for assignment in tree.find_all(nodes.Assign):
            assignment.node = _filtered(assignment.node, "counted")
        for block in tree.find_all(nodes.AssignBlock):
            block.filter = _filtered(block.filter, "counted")
        return self.from_string(tree)


def _filtered(value: nodes.Node | None, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=getattr(value, "lineno", 1))
