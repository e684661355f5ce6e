"""Limits processes to a share of one core: by cgroups if they may be written, or else by stopping
and continuing the processes many times a second."""

import os
import signal
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import psutil

from cluster.actuators.local import records_in

PERIOD_S = 0.01
MIN_QUOTA_S = 0.001  # the kernel's minimum; for smaller shares the period grows
CGROUP_V1, CGROUP_V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


class CpuLimiter(Protocol):
    """Limits processes. One thread. `name` says how it works."""

    name: str

    def limit(self, share: float, *pids: int) -> None:
        """Limit processes, with all their threads, together to `share` of a core, where 1 is a
        whole core. Another call with the same first process changes the share."""

    def close(self) -> None:
        """Remove all limits, whether the processes still run or not. Idempotent."""


def choose_limiter() -> CpuLimiter:
    return CgroupLimiter() if CgroupLimiter.is_possible() else DutyCycleLimiter()


class CgroupLimiter:
    """Limits processes by a cgroup with a CPU quota, of version 1 or 2, whichever exists. Processes
    that they start later are in the group, too."""

    name = "cgroup CPU quota"

    def __init__(self) -> None:
        self._groups: dict[int, Path] = {}  # the key is the first process id

    @classmethod
    def is_possible(cls) -> bool:
        limiter = cls()
        try:
            limiter._make_group(os.getpid(), 1.0)
        except OSError:
            return False
        finally:
            limiter.close()
        return True

    def limit(self, share: float, *pids: int) -> None:
        _move(pids, self._make_group(pids[0], share))

    def close(self) -> None:
        while self._groups:
            _, group = self._groups.popitem()
            while pids := (group / "cgroup.procs").read_text().split():
                _move(map(int, pids), group.parent)
            group.rmdir()

    def _make_group(self, pid: int, share: float) -> Path:
        """Returns a new group. Raises OSError if this process may not make groups."""
        period_s = max(PERIOD_S, MIN_QUOTA_S / share)
        period_us, quota_us = round(period_s * 1e6), round(share * period_s * 1e6)
        is_v1 = (CGROUP_V1 / "cpu.cfs_quota_us").exists()
        group = (CGROUP_V1 if is_v1 else CGROUP_V2) / f"hearth-pipeline-{os.getpid()}-{pid}"
        group.mkdir(exist_ok=True)
        self._groups[pid] = group
        if is_v1:
            (group / "cpu.cfs_period_us").write_text(str(period_us))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {period_us}")
        return group


def _move(pids: Iterable[int], group: Path) -> None:
    """Moves processes to a group. Skips processes that have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid))


class DutyCycleLimiter:
    """Limits processes by a thread that stops them for the rest of each period."""

    name = "SIGSTOP and SIGCONT"

    def __init__(self) -> None:
        self._is_closing = threading.Event()
        self._shares: dict[int, float] = {}  # the key is the first process id
        self._threads: dict[int, threading.Thread] = {}

    def limit(self, share: float, *pids: int) -> None:
        first = pids[0]
        self._shares[first] = share
        if share >= 1.0 or first in self._threads:
            return
        thread = threading.Thread(target=self._cycle, args=pids, name=f"cpu-share-{first}")
        self._threads[first] = thread
        thread.start()

    def close(self) -> None:
        self._is_closing.set()
        while self._threads:
            _, thread = self._threads.popitem()
            thread.join()

    def _cycle(self, *pids: int) -> None:
        while not self._is_closing.wait(self._shares[pids[0]] * PERIOD_S):
            _signal(pids, signal.SIGSTOP)
            self._is_closing.wait((1.0 - self._shares[pids[0]]) * PERIOD_S)
            if not _signal(pids, signal.SIGCONT):
                return  # all have ended


def _signal(pids: Iterable[int], number: signal.Signals) -> bool:
    """Signals processes. Returns whether any of them existed."""
    found = False
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            found = True
    return found


class HeldReplicas:
    """Limits each local replica to a share of a core, as if it had a slower machine. The replicas
    are those in an actuator's folder, which any process may run. One thread."""

    def __init__(self, folder: Path, limiter: CpuLimiter) -> None:
        self._folder, self._limiter = folder, limiter
        self._share_by_name: dict[str, float] = {}

    def hold(self, urls: Collection[str], share: float) -> None:
        """Limit the replicas that listen at `urls` to `share`, each with all its processes."""
        ports = {urlsplit(url).port for url in urls}
        for record in records_in(self._folder):
            if record.port not in ports or self._share_by_name.get(record.name) == share:
                continue
            with suppress(psutil.NoSuchProcess):
                hold_process(self._limiter, record.pid, share)
                self._share_by_name[record.name] = share


def hold_process(limiter: CpuLimiter, pid: int, share: float) -> None:
    """Limits a process and all processes that it started."""
    workers = psutil.Process(pid).children(recursive=True)
    limiter.limit(share, pid, *(each.pid for each in workers))
