"""Reads pages of /metrics in parallel, bounded in bytes and time."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prometheus_client.parser import text_string_to_metric_families

from cluster.clock import steady_s
from cluster.config import ProxyKeys
from cluster.engines import HEARTH, MAX_COUNT, Counters, Engine, parse_counters
from cluster.errors import MetricsUnread
from cluster.replicas import Replica, ReplicaState
from common.fetch import FetchBounds, FetchFailed, fetch
from common.files import read_bounded

MAX_PAGE_BYTES = 8 * 2**20
MAX_TOKEN_BYTES = 16_384
CONNECT_S, READ_S = 3.0, 5.0
ALL_S = 30.0  # for all replicas together
READERS = 16  # threads
WAITING_ROOM = "hearth_proxy_waiting"

Readings = Mapping[str, Counters | MetricsUnread]
"""Counters, or why they could not be read, by replica name."""


class Reader(Protocol):
    """Reads the metrics of replicas and of the proxy. Controller thread only."""

    def read(self, replicas: Sequence[Replica]) -> Readings:
        """Returns a reading for each replica that may have requests."""

    def waiting_at_door(self) -> float:
        """Returns the requests that wait in the proxy. Raises MetricsUnread."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PageReader:
    """Reads pages over HTTP. `engines` has the servers that do not run Hearth. Its threads
    `metrics-N` end with `close`."""

    proxy: ProxyKeys | None
    engines: Mapping[str, Engine] = field(default_factory=dict)
    clock: Callable[[], float] = steady_s
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(READERS, "metrics")
    )

    def read(self, replicas: Sequence[Replica]) -> Readings:
        readable = [
            each
            for each in replicas
            if each.url and each.state in (ReplicaState.READY, ReplicaState.DRAINING)
        ]
        jobs = {each.name: self._pool.submit(self._counters, each) for each in readable}
        wait(jobs.values(), timeout=ALL_S)
        late = MetricsUnread(f"no answer within {ALL_S:g} s, of {len(jobs)} replicas together")
        for job in jobs.values():
            job.cancel()
        return {name: job.result() if job.done() and not job.cancelled() else late
                for name, job in jobs.items()}  # fmt: skip

    def waiting_at_door(self) -> float:
        if self.proxy is None:
            return 0.0
        page = _page(f"{self.proxy.url}/metrics", _token_of(self.proxy.token_file))
        line = "".join(f"{line}\n" for line in page.split("\n") if line.startswith(WAITING_ROOM))
        try:
            found = next(s.value for f in text_string_to_metric_families(line) for s in f.samples)
        except (StopIteration, ValueError) as error:
            raise MetricsUnread(f"the proxy's page has no {WAITING_ROOM}") from error
        if not 0 <= found <= MAX_COUNT:
            raise MetricsUnread(f"{WAITING_ROOM} is {found}, not between 0 and {MAX_COUNT:g}")
        return found

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _counters(self, replica: Replica) -> Counters | MetricsUnread:
        try:
            page = _page(f"{replica.url}/metrics")
            engine = self.engines.get(replica.group.server, HEARTH)
            return parse_counters(page, self.clock(), engine)
        except MetricsUnread as error:
            return MetricsUnread(str(error))  # the caught error would keep its frames alive


def _token_of(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return read_bounded(path, MAX_TOKEN_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        raise MetricsUnread(f"proxy.token_file {path} cannot be read ({error})") from error


def _page(url: str, token: str | None = None) -> str:
    """Raises MetricsUnread."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        content = fetch(url, FetchBounds(CONNECT_S, READ_S, MAX_PAGE_BYTES), headers)
    except FetchFailed as error:
        raise MetricsUnread(str(error)) from error
    return content.decode(errors="replace")
