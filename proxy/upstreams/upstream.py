"""One server behind the proxy, and what the balancer knows of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from proxy.upstreams.connections import ConnectionPool
from proxy.upstreams.keys import UpstreamKeys
from proxy.upstreams.specs import UpstreamSpec

FIRST_COOLDOWN_S = 2.0
# What an upstream that does not say how many user rows it has is taken for, beside those that do.
USUAL_ROWS = 32
# Beyond its rows a replica gets one request for so many of them, so that no row has to wait for
# its next request to come over the network.
ROWS_PER_QUEUED = 8


class UpstreamHealth(Enum):
    """The result of a health check."""

    READY = "ready"
    NOT_READY = "not ready"
    SILENT = "silent"  # no answer in time


@dataclass(frozen=True, slots=True)
class UpstreamRows:
    """An upstream's user rows, as it says itself; `num_taken` with those that wait for one."""

    num: int
    num_taken: int


@dataclass(slots=True, eq=False)
class Upstream:
    """One server and what we know of it. Its fields belong to the Balancer's lock."""

    spec: UpstreamSpec
    pool: ConnectionPool
    keys: Callable[[], UpstreamKeys] = dict  # reads the current keys of all upstreams
    tells_usage: bool = True  # False: it refused to be asked
    in_flight: int = 0
    health: UpstreamHealth = UpstreamHealth.READY
    num_silent_checks: int = 0  # in a row
    num_failures: int = 0
    cooldown_s: float = FIRST_COOLDOWN_S
    ejected_until_s: float = 0.0
    was_unreachable: bool = False  # why it was ejected, as opposed to for broken answers
    rows: UpstreamRows | None = None  # None: it does not say
    num_taken_by_others: int = 0  # its rows that others had at the last health check
    is_full: bool = False  # it said so itself, and no row of it has come free since
    num_streams: int = 0  # answers that come token by token
    last_piece_s: float = 0.0  # when the last piece of any of them came
    share_s: float = 0.0  # see `Balancer.share_s`
    shared_until_s: float = 0.0
    host: str = field(init=False)
    base_path: str = field(init=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.host, self.base_path = self.spec.netloc, self.spec.base_path
        self.name = self.host + self.base_path
        self.rows = self.rows_by_list

    @property
    def rows_by_list(self) -> UpstreamRows | None:
        """Its rows where it does not say: nobody knows how many others have taken."""
        return UpstreamRows(self.spec.rows, 0) if self.spec.rows else None

    @property
    def key(self) -> tuple[str, str] | None:
        return self.keys().get(self.spec.url.rstrip("/"))

    def load(self, num_more: int = 0) -> float:
        """Requests per weight, as if it had the usual number of rows."""
        num_rows = self.rows.num if self.rows else USUAL_ROWS
        num_requests = self.in_flight + self.num_taken_by_others + num_more
        return num_requests / self.spec.weight * USUAL_ROWS / num_rows

    def share(self, now_s: float) -> None:
        """Called before the number of its requests changes, and to read `share_s`, which only a
        price gives a meaning."""
        if self.spec.cents_per_hour is None:
            return
        num_requests = max(1, self.in_flight + self.num_taken_by_others)
        self.share_s += (now_s - self.shared_until_s) / num_requests
        self.shared_until_s = now_s

    def has_row(self) -> bool:
        """Whether one more request finds a row, or will as soon as one comes free."""
        if self.rows is None:
            return True
        room = self.rows.num + max(1, self.rows.num // ROWS_PER_QUEUED)
        return not self.is_full and self.in_flight + self.num_taken_by_others < room
