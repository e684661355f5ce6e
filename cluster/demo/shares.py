"""Holds local replicas to a share of a core each, as if they had a slower machine."""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from cluster.actuators.local import records_in
from scripts.pipeline.cpu_share import CpuLimiter


class HeldReplicas:
    """Of an actuator's folder, whoever runs it. One thread."""

    def __init__(self, folder: Path, limiter: CpuLimiter) -> None:
        self._folder, self._limiter = folder, limiter
        self._share_by_name: dict[str, float] = {}

    def hold(self, urls: Collection[str], share: float) -> None:
        """Those that listen there, each with all its processes, from now on."""
        ports = {urlsplit(url).port for url in urls}
        for record in records_in(self._folder):
            if record.port not in ports or self._share_by_name.get(record.name) == share:
                continue
            with suppress(psutil.NoSuchProcess):
                hold_process(self._limiter, record.pid, share)
                self._share_by_name[record.name] = share


def hold_process(limiter: CpuLimiter, pid: int, share: float) -> None:
    """A process and all that it started."""
    workers = psutil.Process(pid).children(recursive=True)
    limiter.limit(share, pid, *(each.pid for each in workers))
