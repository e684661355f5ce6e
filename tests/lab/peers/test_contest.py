"""A contest of `bench-peers` goes on without those of its peers who do not."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path

import pytest

from lab.benches.serve.peers import Contest, Load
from lab.kit.servers import TIMEOUT_S
from lab.peers import report
from lab.peers.contest import PeerEnded, peer
from lab.peers.install import Recipe
from lab.peers.report import Cell

LOAD = Load("2 users", 2, 4, 3)


class Here(Recipe):
    """A peer in the environment of the tests."""

    @property
    def python(self) -> Path:
        return Path(sys.executable)


MADE_UP = Here("made-up", (), "tests.lab.peers.made_up_peer")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_peer_that_does_not_start_or_ends_is_named_with_its_reason_and_the_others_go_on(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "bench" / "peers.jsonl")
    endings = {"first": "never", "early": "at its start", "late": "at its second load"}
    starts = [
        peer(name, MADE_UP, partial(list, [ending]), tmp_path / name)
        for name, ending in endings.items()
    ]
    contest = Contest(stack, starts, {"absent": "it does not install: no compiler"})
    assert report.keep(Cell("110m", "int8", "1 user"), "a machine", contest.measure(LOAD, 2))
    rows = report.keep(Cell("110m", "int8", LOAD.name), "a machine", contest.measure(LOAD, 2))
    first, *others = (row.split(" | ")[2:4] for row in rows.splitlines())
    assert first[0] == "first"
    assert "did not run" not in first[1]
    assert dict(others) == {
        "absent": "did not run: it does not install: no compiler",
        "early": "did not run: exit status 1: ValueError: too little memory to start",
        "late": "did not run: exit status 1: ValueError: too little memory ¦ for another load",
    }
    assert report.table().count("made up") == 1
    assert report.chart().count("<rect") == 2


def test_a_peer_that_ends_while_it_waits_is_noticed_at_its_turn_and_leaves_nothing(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    starts = [peer(name, MADE_UP, lambda: ["never"], tmp_path / name) for name in ("one", "other")]
    one, other = (stack.enter_context(each) for each in starts)
    contest = Contest(stack, [nullcontext(one), nullcontext(other)], {})
    assert len([*temporary.glob("*/*")]) == 2, "what each has made"
    other.process.kill()
    first, second = contest.measure(LOAD, 1)
    assert (first.name, len(first.rates)) == ("one", 1)
    assert (second.name, second.rates) == ("other", [])
    assert second.about.startswith("exit status -9")
    stack.close()
    assert not [*temporary.iterdir()]


def test_a_peer_whose_model_is_not_made_does_not_start(stack: ExitStack, tmp_path: Path) -> None:
    def export() -> Sequence[str]:
        command = [sys.executable, "-c", "import sys; sys.exit('no such format')"]
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
        return []

    with pytest.raises(PeerEnded, match="exit status 1: no such format"):
        stack.enter_context(peer("exported", MADE_UP, export, tmp_path / "log"))
