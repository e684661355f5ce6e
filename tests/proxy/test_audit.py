"""One line for every request, whatever its client put into it."""

import json

import pytest

from proxy.audit import AuditRecord, Outcome


@pytest.mark.parametrize("model", ["hearth-tiny", 'é\n"', "\ud800", "\x00"])
def test_line_holds_any_name_of_a_model(model: str) -> None:
    record = AuditRecord("id", "POST", "/v1/completions", model=model, outcome=Outcome.REFUSED)
    record.end()
    line = record.line()
    assert "\n" not in line
    found = json.loads(line)
    assert (found["model"], found["outcome"], "team_id" in found) == (model, "refused", False)
