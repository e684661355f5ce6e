"""One line for every request, whatever its client put into it."""

import json
import logging
from pathlib import Path

import pytest

from proxy.audit import AuditRecord, Outcome
from proxy.worker import AuditFile
from tests.full_disk import full_disk


@pytest.mark.parametrize("model", ["hearth-tiny", 'é\n"', "\ud800", "\x00"])
def test_line_holds_any_name_of_a_model(model: str) -> None:
    record = AuditRecord("id", "POST", "/v1/completions", model=model, outcome=Outcome.REFUSED)
    record.end()
    line = record.line()
    assert "\n" not in line
    found = json.loads(line)
    assert (found["model"], found["outcome"], "team_id" in found) == (model, "refused", False)


def test_a_full_disk_is_said_once_until_a_line_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = AuditFile(tmp_path / "audit.jsonl", encoding="utf-8")
    for _ in range(2):
        with full_disk():
            for _ in range(3):
                handler.handle(logging.makeLogRecord({"msg": "{}"}))
        handler.handle(logging.makeLogRecord({"msg": "{}"}))
    handler.close()
    warnings = [each.getMessage() for each in caplog.records]
    assert len(warnings) == 2
    assert "AUDIT_FILE" in warnings[0]
    assert "File too large" in warnings[0]
    assert capsys.readouterr().err == ""
    assert {*(tmp_path / "audit.jsonl").read_text().splitlines()} == {"{}"}
