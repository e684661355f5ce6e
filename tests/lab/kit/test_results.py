"""What a bench prints stands in files afterwards, with what it was measured by."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.benches import __main__ as benches
from lab.kit import results

PRINTED = "a machine\n\n| rows | ms |\n|---|---|\n| 1 | 2.5 |\n| 8 | |\n\nand a line\n"


class Folders:
    def __init__(self, folder: Path) -> None:
        self.kept, self.published = folder / "bench", folder / "results"

    def files(self) -> list[Path]:
        return sorted([*self.kept.rglob("*.*"), *self.published.rglob("*.*")])


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    folders = Folders(tmp_path)
    monkeypatch.setattr(results, "KEPT", folders.kept)
    monkeypatch.setattr(results, "PUBLISHED", folders.published)
    monkeypatch.setattr(benches, "MODULES", {"made-up": "made_up"})
    return folders


def start(monkeypatch: pytest.MonkeyPatch, ends_with: object, *arguments: str) -> object:
    """Runs a made-up bench by the command line; returns the status."""

    def main() -> object:
        assert sys.argv == ["bench-made-up", *(one for one in arguments if one != "--publish")]
        print(PRINTED, end="")
        if isinstance(ends_with, BaseException):
            raise ends_with
        return ends_with

    monkeypatch.setitem(sys.modules, "lab.benches.made_up", SimpleNamespace(main=main))
    monkeypatch.setattr(sys, "argv", ["lab.benches", "made-up", *arguments])
    with pytest.raises(SystemExit) as ended:
        benches.main()
    return ended.value.code


@pytest.mark.parametrize("verdict", [0, 1])
def test_what_a_bench_prints_is_written_with_its_command_commit_and_machine(
    folders: Folders,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verdict: int,
) -> None:
    assert start(monkeypatch, SystemExit(verdict), "--rounds", "2") == verdict
    assert PRINTED in capsys.readouterr().out
    as_json, as_text = folders.files()
    assert as_json.with_suffix(".md") == as_text
    assert as_text.parent == folders.kept / "made-up"
    text = as_text.read_text()
    figures = json.loads(as_json.read_text())
    assert text.endswith(PRINTED)
    assert figures["command"] == "python -m lab.benches made-up --rounds 2"
    assert all(figures[name] in text for name in ("command", "commit", "machine", "began"))
    assert figures["tables"] == [{"columns": ["rows", "ms"], "rows": [["1", "2.5"], ["8", ""]]}]


def test_a_published_result_is_never_replaced_but_one_that_is_only_kept(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in ([], [], ["--publish"], ["--publish"], ["--publish"]):
        assert start(monkeypatch, None, *arguments) == 0
    texts = [path for path in folders.files() if path.suffix == ".md"]
    assert [path.parent for path in texts] == [
        folders.kept / "made-up",
        *[folders.published / "made-up"] * 3,
    ]


@pytest.mark.parametrize("ends_with", [SystemExit("no device"), SystemExit(2)])
def test_a_bench_that_could_not_measure_leaves_no_files(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, ends_with: SystemExit
) -> None:
    assert start(monkeypatch, ends_with) == ends_with.code
    assert folders.files() == []


def test_help_leaves_no_files(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start(monkeypatch, SystemExit(0), "--publish", "--help") == 0
    assert folders.files() == []


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        ("AMD EPYC", "amd-epyc"),
        ("Intel(R) Xeon(R) Processor", "intel-xeon"),
        ("Intel(R) Core(TM) i5-8250U CPU @ 1.60GHz", "intel-core-i5-8250u"),
    ],
)
def test_files_are_named_for_the_date_and_the_processor(processor: str, name: str) -> None:
    run = results.Run("step", "…", "…", f"{processor}, 2 cores, 24 GiB", "2026-11-28, 06:36 UTC")
    assert run.stem == f"2026-11-28-{name}"
