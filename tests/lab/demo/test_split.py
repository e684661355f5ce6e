"""The loop from a running engine to its best split: on real processes, and on speeds made up."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest

from lab.demo.split import tune as tune_partition
from lab.demo.split.engine import Load, PipelineEngine
from lab.demo.split.tune import every_split
from lab.kit.servers import ROOT
from lab.kit.shares import CgroupLimiter, CpuLimiter, DutyCycleLimiter
from weights.drivers import Ring
from weights.errors import EngineUnusable
from weights.partition import Layers


class SimulatedEngine:
    """Stage times of nodes whose speeds are as 4 : 2 : 1."""

    ring = Ring(("fast", "half", "slow"), 14, (14, 14, 14))

    def __init__(self) -> None:
        self.measured: list[Layers] = []

    def measure(self, layers: Layers) -> float:
        self.measured.append(layers)
        return self.speed(layers)

    def finish(self, layers: Layers) -> str:
        return "nothing is left"

    def speed(self, layers: Layers) -> float:
        return 100 / max(count / speed for count, speed in zip(layers, (4, 2, 1), strict=True))


def test_every_split_is_there_once() -> None:
    assert list(every_split(4, 3)) == [(1, 1, 2), (1, 2, 1), (2, 1, 1)]
    assert len(set(every_split(12, 3))) == len(list(every_split(12, 3))) == 55


def test_what_was_found_is_compared_with_the_best_of_every_split(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = SimulatedEngine()
    monkeypatch.setattr(tune_partition, "PipelineEngine", lambda *_: nullcontext(engine))
    monkeypatch.setattr("sys.argv", ["tune", "--trials", "6", "--exhaustive", "--rounds", "1"])
    assert tune_partition.main() == 0
    shown = capsys.readouterr().out
    assert "exhaustive: 78 splits" in shown
    (share,) = re.findall(r"^found +([\d.]+)% of the best$", shown, re.M)
    best = max(map(engine.speed, every_split(14, 3)))
    found = engine.measured[-1]
    assert float(share) == pytest.approx(100 * engine.speed(found) / best, abs=0.05)
    assert len(set(engine.measured)) == 78


def test_real_processes_are_tuned_and_leave_nothing_behind() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "lab.demo.split", "--trials", "3", "--seconds", "0.05",
         "--shares", "1,0.5,0.25"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        shown, faults = run.communicate()
    assert run.returncode == 0, faults
    *trials, result = (json.loads(line) for line in shown.splitlines()[1:])
    assert 1 <= len(trials) <= 3
    for trial in trials:
        assert sum(trial["layers"]) == 5
        assert trial["tokens_per_s"] > 0
    assert re.fullmatch(r"SPLIT=\d,\d,\d", result["setting"])
    assert not list(Path("/sys/fs/cgroup").glob(f"**/hearth-pipeline-{run.pid}-*"))


def test_an_engine_that_cannot_start_says_so(tmp_path: Path) -> None:
    load = Load(rows=1, seconds=0.1)
    with (
        pytest.raises(EngineUnusable, match="has ended"),
        PipelineEngine(tmp_path, [1.0, 1.0], load, DutyCycleLimiter()),
    ):
        pass


@contextmanager
def busy_process() -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def state_seen(process: psutil.Process, wanted: str) -> bool:
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s:
        if process.status() == wanted:
            return True
    return False


def test_a_duty_cycle_stops_and_continues_a_process() -> None:
    with busy_process() as process:
        limiter = DutyCycleLimiter()
        limiter.limit(0.25, process.pid)
        assert state_seen(process, psutil.STATUS_STOPPED)
        assert state_seen(process, psutil.STATUS_RUNNING)
        limiter.close()
        assert process.status() != psutil.STATUS_STOPPED


def test_a_duty_cycle_stops_processes_together_and_takes_another_share() -> None:
    with busy_process() as first, busy_process() as second:
        limiter = DutyCycleLimiter()
        limiter.limit(1.0, first.pid, second.pid)
        limiter.limit(0.5, first.pid, second.pid)
        limiter.limit(0.1, first.pid, second.pid)
        assert state_seen(first, psutil.STATUS_STOPPED)
        assert state_seen(second, psutil.STATUS_STOPPED)
        first.kill()
        first.wait()
        assert state_seen(second, psutil.STATUS_RUNNING)
        limiter.close()
        assert second.status() != psutil.STATUS_STOPPED


def test_a_cgroup_throttles_a_process() -> None:
    if not CgroupLimiter.is_possible():
        pytest.skip("cgroups may not be written here")
    limiter: CpuLimiter = CgroupLimiter()
    with busy_process() as process:
        limiter.limit(0.5, process.pid)
        limiter.limit(0.02, process.pid)  # less than it gets on the busiest machine
        (group,) = Path("/sys/fs/cgroup").glob(f"**/hearth-pipeline-*-{process.pid}")
        end_s = time.monotonic() + 30
        while "nr_throttled 0" in (group / "cpu.stat").read_text() and time.monotonic() < end_s:
            pass
        assert "nr_throttled 0" not in (group / "cpu.stat").read_text()
    limiter.close()
    assert not group.exists()


def test_processes_share_a_cgroup_and_leave_it_together() -> None:
    if not CgroupLimiter.is_possible():
        pytest.skip("cgroups may not be written here")
    limiter = CgroupLimiter()
    with busy_process() as first, busy_process() as second:
        limiter.limit(0.5, first.pid, second.pid)
        (group,) = Path("/sys/fs/cgroup").glob(f"**/hearth-pipeline-*-{first.pid}")
        held = (group / "cgroup.procs").read_text().split()
        assert sorted(map(int, held)) == sorted([first.pid, second.pid])
        limiter.close()
        assert not group.exists()
        assert first.is_running()
