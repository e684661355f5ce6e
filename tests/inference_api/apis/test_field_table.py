"""Every field of every body is of one kind, and the documents say of which."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from pydantic import ValidationError

from inference_api.apis.field_table import BODIES, field_tables
from inference_api.web.fields import Body
from inference_api.web.left_aside import LeftAside, places
from lab.kit.servers import ROOT


def kinds() -> Iterator[tuple[str, type[Body]]]:
    for route, body in BODIES.items():
        for kind, place in places(body).items():
            if issubclass(kind, Body):
                yield f"{route} {place} {kind.__name__}", kind


KINDS = dict(kinds())
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


@each_kind
def test_a_field_is_of_one_kind(kind: type[Body]) -> None:
    fields = [field.alias or name for name, field in kind.model_fields.items()]
    named = [*fields, *kind.advisory, *kind.of_answers, *kind.unserved, *kind.also_called]
    assert len(set(named)) == len(named)


@each_kind
def test_no_field_that_is_known_is_taken_for_another(kind: type[Body]) -> None:
    """So that whoever adds one sees what it looks like: only what is not known is compared."""
    for name in (*kind.advisory, *kind.of_answers):
        aside = LeftAside(kind)
        with suppress(ValidationError):  # of what is missing beside it
            kind.model_validate({name: "x"}, context=aside)
        assert list(aside.paths) == ([name] if name in kind.advisory else [])


def test_the_document_has_the_tables() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    _, _, begun = page.partition("<!-- fields: python -m inference_api.apis.field_table -->\n\n")
    assert begun.partition("\n<!-- end of fields -->")[0] == "\n".join(field_tables())
