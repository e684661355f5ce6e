"""Makes grammars for arguments in Gemma 4's format from their schemas: see `tools.gemma`. Pure.

Types, `enum`, `const`, `required`, lengths and numbers of items are enforced. Other keywords of a
schema are ignored.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from inference_api.tools.events import Json
from inference_api.tools.gemma import QUOTE

if TYPE_CHECKING:
    from inference_api.text.call_grammars import Marks

OfSchema = Callable[[Json], str]  # returns Lark for JSON that fits a schema

_SCALARS = ("integer", "number", "boolean", "null")
_ANY = "gemma_value"


def any_value(write: "Marks") -> Iterator[str]:
    """Yields the rules for values without a schema."""
    item, quote = _ANY, write(QUOTE)
    yield r"GEMMA_KEY: /[^\s{}\[\]:,\"<]{1,64}/"
    yield r"GEMMA_BARE: /true|false|null|-?[0-9]{1,15}(\.[0-9]{1,15})?/"
    yield _text("gemma_text", "TEXT", write)
    yield f"gemma_member: GEMMA_KEY {write(':')} {item}"
    members, items = (_list_of(each, write) for each in ("gemma_member", item))
    yield f"{item}: GEMMA_BARE | {quote} gemma_text | {write('{')} {members} {write('}')} | " + (
        f"{write('[')} {items} {write(']')}"
    )


def arguments(rule: str, schema: Json, of_schema: OfSchema, write: "Marks") -> Sequence[str]:
    """Returns the rules for a call's arguments."""
    values = _Values(rule, schema, of_schema, write)
    values.add_object(rule, schema)
    return values.rules


def _text(rule: str, text: str, write: "Marks") -> str:
    """Returns the rule for a text up to its end mark."""
    lazy = "" if write.is_token(QUOTE) else "[lazy]"
    return f"{rule}{lazy}: {text} {write(QUOTE)}"


def _list_of(item: str, write: "Marks", least: int = 0, most: int | None = None) -> str:
    if most == 0:
        return '""'
    further = f"{max(least - 1, 0)},{'' if most is None else most - 1}"
    items = f"({item} ({write(',')} {item}){{{further}}})"
    return items if least else f"{items}?"


class _Values:
    """Rules for the values in one call. Their names begin with `prefix`."""

    def __init__(self, prefix: str, schema: Json, of_schema: OfSchema, write: "Marks") -> None:
        self.rules: list[str] = []
        self._prefix, self._schema = prefix, schema
        self._of_schema, self._write = of_schema, write
        self._count = 0
        self._by_reference: dict[str, str] = {}

    def add_object(self, rule: str, about: Json) -> None:
        """Adds the rule of an object. Members are sorted by name, as in the model's template."""
        write, named = self._write, about.get("properties")
        named = named if isinstance(named, Mapping) else {}
        if not named and about.get("additionalProperties", True) is not False:
            members = _list_of("gemma_member", write)
            self.rules.append(f"{rule}: {write('{')} {members} {write('}')}")
            return
        required = about.get("required") if isinstance(about.get("required"), list) else []
        names = sorted(named, key=str.lower)
        firsts, is_empty = [], True
        for number, name in enumerate(names):
            member, rest = f"{rule}_m{number}", f"{rule}_r{number + 1}"
            self.rules.append(f"{member}: {write(f'{name}:')} {self.rule_of(named[name])}")
            if is_empty:
                firsts.append(f"{member} {rest}")
            is_required = name in (required or ())
            is_empty = is_empty and not is_required
            follows = f"({write(',')} {member}){'' if is_required else '?'}"
            self.rules.append(f"{rule}_r{number}: {follows} {rest}")
        self.rules.append(f'{rule}_r{len(names)}: ""')
        inside = f"({' | '.join(firsts)}){'?' if is_empty else ''}" if firsts else ""
        self.rules.append(f"{rule}: {write('{')} {inside} {write('}')}")

    def rule_of(self, about: object) -> str:
        """Returns the name of the rule for this kind of value."""
        if not isinstance(about, Mapping):
            return _ANY
        reference = about.get("$ref")
        if isinstance(reference, str):
            if reference not in self._by_reference:
                name = self._by_reference[reference] = self._new_name()
                found = self._referred(reference)
                self.rules.append(f"{name}: {_ANY if found is None else self.rule_of(found)}")
            return self._by_reference[reference]
        return self._of_plain(dict(about))

    def _of_plain(self, about: Json) -> str:
        name, kind = self._new_name(), about.get("type")
        options = about.get("enum", [about["const"]] if "const" in about else None)
        choices = about.get("anyOf", about.get("oneOf"))
        if isinstance(options, list) and options:
            written = " | ".join(self._write(_literal(each)) for each in options)
        elif isinstance(choices, list) and choices:
            written = " | ".join(self.rule_of(each) for each in choices)
        elif isinstance(kind, list) and kind:
            written = " | ".join(self.rule_of({**about, "type": each}) for each in kind)
        elif kind == "string":
            written = f"{self._write(QUOTE)} {self._text(name, about.get('maxLength'))}"
        elif kind in _SCALARS:
            written = self._of_schema(about)
        elif kind == "array":
            bounds = (_count(about, "minItems") or 0, _count(about, "maxItems"))
            items = _list_of(self.rule_of(about.get("items")), self._write, *bounds)
            written = f"{self._write('[')} {items} {self._write(']')}"
        elif kind == "object":
            self.add_object(name, about)
            return name
        else:
            return _ANY
        self.rules.append(f"{name}: {written}")
        return name

    def _text(self, name: str, longest: object) -> str:
        text = rf"/(.|\n){{0,{longest}}}/" if isinstance(longest, int) else "TEXT"
        self.rules.append(_text(f"{name}_text", text, self._write))
        return f"{name}_text"

    def _referred(self, reference: str) -> object:
        found: object = self._schema
        for key in reference.removeprefix("#").strip("/").split("/"):
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def _new_name(self) -> str:
        self._count += 1
        return f"{self._prefix}_v{self._count}"


def _count(about: Json, name: str) -> int | None:
    value = about.get(name)
    return value if isinstance(value, int) and value >= 0 else None


def _literal(value: object) -> str:
    if isinstance(value, str):
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, Mapping):
        members = (f"{name}:{_literal(value[name])}" for name in sorted(value, key=str.lower))
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_literal, value)) + "]"
    return json.dumps(value)
