"""Ranks that end, and start again together: processes that do as their files say."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from inference_api.errors import StartupError
from inference_api.settings import Settings
from lab.kit.servers import eventually
from scripts import ranks as module
from scripts.ranks import Ranks

# Says in `started` who it is, then waits for its exit status, in a pipe of its name.
RANK = """
import json, os, pathlib, signal, sys
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
if (folder / "ignores").exists():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
told = folder / f"{rank} {os.getpid()}"
os.mkfifo(told)
who = {name: os.environ[name] for name in names} | {"pid": os.getpid()}
with open(folder / "started", "a") as started:
    print(json.dumps(who), file=started)
sys.exit(int(told.read_text()))
"""
URL = "http://127.0.0.1:1"  # nobody is there


class Group:
    def __init__(self, folder: Path, split: Any) -> None:
        self._folder = folder
        self.ranks = Ranks(Settings(split=split), URL)

    def started(self, count: int) -> list[dict[str, Any]]:
        """The last two, once there were so many."""

        def lines() -> list[str]:
            path = self._folder / "started"
            found = path.read_text().splitlines() if path.exists() else []
            return found if len(found) == count else []

        found = map(json.loads, eventually(lines)[-2:])
        return sorted(found, key=lambda each: str(each["RANK"]))

    def end(self, rank: dict[str, Any], status: int) -> None:
        (self._folder / f"{rank['RANK']} {rank['pid']}").write_text(str(status))


MakeGroup = Callable[..., Group]


@pytest.fixture
def make_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeGroup]:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    monkeypatch.setattr(module, "RANK", (sys.executable, str(script), str(tmp_path)))
    groups: list[Group] = []

    def make(split: Any = (2, 3)) -> Group:
        groups.append(Group(tmp_path, split))
        return groups[-1]

    yield make
    for group in groups:
        for each in group.ranks._all:
            if each.poll() is None:
                each.kill()
                each.wait()


def test_ranks_are_told_their_places(make_group: MakeGroup) -> None:
    group = make_group()
    first, second = group.started(2)
    assert (first.pop("RANK"), second.pop("RANK")) == ("0", "1")
    del first["pid"], second["pid"]
    assert first == second
    assert first["WORLD_SIZE"] == first["LOCAL_WORLD_SIZE"] == "2"
    assert first["MASTER_ADDR"] == "127.0.0.1"
    assert group.ranks.poll() is None


@pytest.mark.parametrize("failing", [0, 1])
def test_when_one_fails_all_end_and_start_again(make_group: MakeGroup, failing: int) -> None:
    group = make_group()
    before = group.started(2)
    group.end(before[failing], 3)

    def is_new() -> bool:
        assert group.ranks.poll() is None
        return not any(psutil.pid_exists(int(each["pid"])) for each in before)

    eventually(is_new)
    after = group.started(4)
    assert [each["RANK"] for each in after] == ["0", "1"]
    assert group.ranks.poll() is None


def test_ranks_that_have_done_their_work_do_not_start_again(
    make_group: MakeGroup,
) -> None:
    group = make_group()
    for each in group.started(2):
        assert group.ranks.poll() is None
        group.end(each, 0)
    assert eventually(lambda: group.ranks.poll() == 0)


def test_ranks_that_fail_again_and_again_are_given_up(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_RESTARTS", 1)
    group = make_group()
    group.end(group.started(2)[0], 3)
    eventually(lambda: group.ranks.poll() is None and group.ranks._restarts_left == 0)
    group.end(group.started(4)[1], 5)
    assert eventually(lambda: group.ranks.poll() == 5)
    group.ranks.terminate()
    group.ranks.wait()


def test_a_rank_that_does_not_end_is_killed(make_group: MakeGroup, tmp_path: Path) -> None:
    (tmp_path / "ignores").touch()
    group = make_group()
    group.ranks._shutdown_s = 0
    first, hanging = group.started(2)
    group.end(first, 1)
    eventually(lambda: group.ranks.poll() is None and group.ranks._restarts_left < 20)
    assert not psutil.pid_exists(hanging["pid"])
    group.started(4)


def test_a_split_that_can_never_be_served_starts_nothing() -> None:
    with pytest.raises(StartupError, match="has 4 layers, but the model has 5"):
        Ranks(Settings(split=(2, 2)), URL)


def test_terminated_ranks_end(make_group: MakeGroup) -> None:
    group = make_group()
    group.started(2)
    group.ranks.terminate()
    group.ranks.wait()
    assert {each.returncode for each in group.ranks._ranks} == {-signal.SIGTERM}


def test_the_search_runs_beside_ranks_that_are_ready_and_may_end(
    make_group: MakeGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = tmp_path / "searches"
    searching = f"open({str(searches)!r}, 'a').write('x'); import sys; sys.exit(1)"
    monkeypatch.setattr(module, "_search", lambda *_: [sys.executable, "-c", searching])
    is_ready: list[bool] = []
    monkeypatch.setattr(module, "answers_ok", lambda url: bool(is_ready))
    group = make_group(split="auto")
    first, _ = group.started(2)

    def has_searched(times: int) -> bool:
        assert group.ranks.poll() is None
        return searches.exists() and len(searches.read_text()) == times

    assert not has_searched(0)
    is_ready.append(True)
    eventually(lambda: has_searched(1))
    assert not has_searched(2)
    group.end(first, 1)
    eventually(lambda: has_searched(2))


def test_a_search_that_is_not_installed_is_named_before_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scripts.ranks.find_spec", lambda _: None)
    with pytest.raises(StartupError, match=r"pip install 'hearth\[weights\]'"):
        Ranks(Settings(split="auto"), URL)
