"""`hearth bundle validate`: its table, its exit status, its JSON."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inference_api.settings.model import EMBEDDED_MODEL
from scripts.bundle import main

SOUND = f"""
version: 1
memory_limit: 1GiB
fast_memory_limit: 1GiB
default: small
experts:
  - {{name: large, source: {EMBEDDED_MODEL}, rows: {{min: 2}}, pinned: true}}
  - {{name: small, source: {EMBEDDED_MODEL}, quantisation: int4}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "bundle.yaml"
    file.write_text(SOUND)
    return file


def run(file: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["validate", str(file), *options])


def test_sound_bundle_is_shown_with_its_bytes(file: Path) -> None:
    result = run(file)
    assert result.exit_code == 0
    head, large, small, _, memory, fast, rows, *_, last = result.stdout.splitlines()
    used = json.loads(run(file, "--json").stdout)["utilization"]
    assert head.split() == ["expert", "weights", "cache/row", "rows", "need"]
    for line, taken, notes in zip(
        (large, small), used["experts"], (["auto,", "pinned"], ["int4,", "default"]), strict=True
    ):
        name, weights, cache, _, need, *shown = line.split()
        assert [name, int(weights), int(cache), int(need)] == list(taken.values())
        assert shown == notes
    for line, limit in ((memory, "memory"), (fast, "fast_memory")):
        need, limit_bytes = used[limit].values()
        assert line.split()[:5] == [f"{limit}_limit", str(need), "of", str(limit_bytes), "bytes,"]
    assert rows.split() == ["rows.min", "3", "of", "USER_ROWS=32"]
    assert last == "valid"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_bundle_that_cannot_be_served_exits_with_2(file: Path, options: list[str]) -> None:
    file.write_text(SOUND.replace("fast_memory_limit: 1GiB", "fast_memory_limit: 1MiB"))
    result = run(file, *options)
    assert result.exit_code == 2
    assert "large: fast_memory_limit: need " in result.stdout


def test_file_that_cannot_be_read_exits_with_2_and_lists_its_faults(file: Path) -> None:
    file.write_text(SOUND.replace("pinned", "pined").replace("version: 1", "version: 2"))
    result = run(file)
    assert result.exit_code == 2
    version, pined, last = result.stdout.splitlines()
    assert version == "ERROR version: is 2; give 1."
    assert pined.startswith("ERROR experts[0].pined: is not known (did you mean pinned?)")
    assert last == "not valid"
    answer = json.loads(run(file, "--json").stdout)
    assert (answer["valid"], answer["utilization"]) == (False, None)
    assert {each["reason"] for each in answer["validations"]} == {"FileInvalid"}


def test_expert_that_cannot_be_understood_has_no_bytes(file: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    file.write_text(SOUND.replace(str(EMBEDDED_MODEL), str(gone), 1))
    result = run(file)
    assert result.exit_code == 2
    assert result.stdout.splitlines()[1].split() == ["large", "?", "?", "2", "?", "auto,", "pinned"]
    assert f"ERROR large: source={gone} is no folder" in result.stdout


def test_settings_are_those_of_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNDLE", "/no/such/bundle.yaml")  # another may be served
    monkeypatch.setenv("USER_ROWS", "2")
    result = run(file)
    assert result.exit_code == 2
    assert "ERROR rows.min: need 3 rows, limit USER_ROWS=2, over by 1" in result.stdout
    monkeypatch.setenv("USER_ROWS", "none")
    result = run(file)
    assert result.exit_code == 2
    assert "USER_ROWS='none'" in result.stderr
