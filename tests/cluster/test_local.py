"""Local processes: what is kept of them, and what is not taken for one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cluster.actuators.api_process import ApiProcess, claimed_cores
from cluster.actuators.local import LocalMachine
from cluster.engines import ENGINES, Engine
from cluster.errors import ActuatorUnusable
from cluster.replicas import Group, Recipe
from lab.kit.servers import TIMEOUT_S, eventually
from tests.full_disk import full_disk

GROUP = Group("chat", "core", 8)
MOCK = {"MOCK_MODEL": "1"}
RECORD = {
    "name": "old", "server": "chat", "accelerator": "core", "user_rows": 8,
    "resources": {"CPU": 1}, "port": 7000, "pid": os.getpid(), "started": "another boot 7",
}  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[LocalMachine]:
    machine = LocalMachine(tmp_path, {"CPU": 2, "acc_X": 1}, pins=True)
    yield machine
    for each in machine.placed():
        machine.remove(each.name)
    machine.close()


def process_of(folder: Path, name: str) -> ApiProcess:
    record = json.loads((folder / f"{name}.json").read_text())
    return ApiProcess(record["pid"], record["started"])


def test_a_replica_has_its_whole_cores_for_itself(tmp_path: Path, machine: LocalMachine) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    assert machine.place("a", GROUP, Recipe(MOCK, {"CPU": 1})) is None
    pid = process_of(tmp_path, "a").pid
    eventually(lambda: os.sched_getaffinity(pid) == {first})
    assert machine.place("b", GROUP, Recipe(MOCK, {"CPU": 0.5})) is None
    pid = process_of(tmp_path, "b").pid
    assert os.sched_getaffinity(pid) == {first, *others}, "half a core is nobody's own"


def test_cores_are_claimed_until_their_process_ends(tmp_path: Path) -> None:
    every = sorted(os.sched_getaffinity(0))
    claim = (
        "import sys; from pathlib import Path; "
        "from cluster.actuators.api_process import claimed_cores; "
        "print(claimed_cores(1, Path(sys.argv[1])), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", claim, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == f"({every[0]},)\n"
        assert claimed_cores(len(every), tmp_path) == ()
        other.kill()
    assert claimed_cores(len(every), tmp_path) == tuple(every)


SAYS = "import os, sys, time; print(*sys.argv[1:], os.environ.get('KEY'), flush=True); "


def engine_of(*words: str) -> Engine:
    return replace(ENGINES["vllm"], command=words)


def test_another_engine_is_run_by_its_command_line(tmp_path: Path, machine: LocalMachine) -> None:
    script = SAYS + "time.sleep(600)"
    words = (sys.executable, "-c", script, "--at", "{host}:{port}", "--json={}", "{devices}")
    machine.place("a", GROUP, Recipe({"KEY": "value"}, {"CPU": 1}, engine_of(*words)))
    (placed,) = machine.placed()
    log = tmp_path / "a.log"
    eventually(lambda: log.read_text().endswith("\n"))
    address = (placed.url or "").removeprefix("http://")
    assert log.read_text() == f"--at {address} --json={{}}  value\n"


def test_an_engine_that_is_not_installed_is_told(machine: LocalMachine) -> None:
    machine.place("a", GROUP, Recipe({}, {"CPU": 1}, engine_of("/no/such/engine", "--port")))
    ended = eventually(lambda: machine.placed()[0].ended)
    assert ended == "/no/such/engine cannot be run (No such file or directory); " + (
        "install it or give its path."
    )


def has_a_line(log: Path) -> bool:
    return log.read_text().endswith("\n")


def test_a_replica_has_its_whole_gpus_for_itself(tmp_path: Path) -> None:
    machine = LocalMachine(tmp_path, {"GPU": 3})
    engine = engine_of(sys.executable, "-c", SAYS, "{devices}")
    try:
        for name, count in (("a", 2), ("b", 1), ("c", 0)):
            machine.place(name, GROUP, Recipe({"KEY": name}, {"GPU": count}, engine))
            eventually(partial(has_a_line, tmp_path / f"{name}.log"))
        said = [(tmp_path / f"{name}.log").read_text() for name in "abc"]
        assert said == ["0,1 a\n", "2 b\n", " c\n"]
        machine.remove("a")
        machine.place("d", GROUP, Recipe({"KEY": "d"}, {"GPU": 1}, engine))
        assert eventually((tmp_path / "d.log").read_text) == "0 d\n"
    finally:
        for each in machine.placed():
            machine.remove(each.name)
        machine.close()


def test_what_is_lacking_is_said_by_name(machine: LocalMachine) -> None:
    wanted = {"CPU": 3, "acc_X": 1, "acc_Y": 1}
    assert machine.place("a", GROUP, Recipe(MOCK, wanted)) == (
        "CPU: need 3, 2 of 2 free; acc_Y: need 1, 0 of 0 free"
    )
    assert machine.placed() == []


def test_removing_a_replica_leaves_no_process_and_no_file(
    tmp_path: Path, machine: LocalMachine
) -> None:
    machine.place("a", GROUP, Recipe(MOCK, {"CPU": 1}))
    process = process_of(tmp_path, "a")
    assert process.is_running()
    machine.remove("a")
    assert not process.is_running()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    machine.remove("a")
    machine.terminate("a")
    machine.mark_leaving("a")


def test_what_cannot_be_recorded_does_not_run(tmp_path: Path, machine: LocalMachine) -> None:
    engine = engine_of(sys.executable, "-c", "import time; time.sleep(600)", str(tmp_path))
    with full_disk(), pytest.raises(ActuatorUnusable, match="cannot be written"):
        machine.place("a", GROUP, Recipe({}, {"CPU": 1}, engine))
    assert machine.placed() == []
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    mark = str(tmp_path).encode()
    running = [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in bytes_of(path)]
    assert not running


def bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_record_of_another_boot_is_nobody_of_today(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(json.dumps(RECORD))
    machine = LocalMachine(tmp_path)  # would have killed these tests
    assert machine.placed() == []
    assert not (tmp_path / "old.json").exists()
    machine.close()


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "\0" * 100, "[" * 100_000, json.dumps(RECORD)[:-9],
        json.dumps(RECORD | {"pid": 1}), json.dumps(RECORD | {"pid": 10**30}),
        json.dumps(RECORD | {"port": -1}), json.dumps(RECORD | {"name": "../old"}),
        json.dumps(RECORD | {"name": "young"}), json.dumps(RECORD | {"started": ""}),
    ],
)  # fmt: skip
def test_what_is_no_record_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(text)
    machine = LocalMachine(tmp_path)
    assert machine.placed() == []
    machine.close()
    assert path.read_text() == text


def test_a_folder_in_place_of_a_record_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "old.json").mkdir()
    for _ in range(2):
        machine = LocalMachine(tmp_path)
        assert machine.placed() == []
        machine.close()


def test_one_controller_has_a_folder(tmp_path: Path) -> None:
    machine = LocalMachine(tmp_path)
    with pytest.raises(ActuatorUnusable, match="Another controller"):
        LocalMachine(tmp_path)
    machine.close()
    LocalMachine(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ActuatorUnusable, match="file/replicas cannot be used"):
        LocalMachine(tmp_path / "file" / "replicas")


def test_a_process_whose_parent_has_gone_does_not_begin() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "cluster.actuators.launch", "--parent", "1"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert (ended.returncode, ended.stderr) == (1, "The parent process has ended.\n")
