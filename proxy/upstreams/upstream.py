"""One server behind the proxy, and what the balancer knows about it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

from proxy.upstreams.connections import ConnectionPool
from proxy.upstreams.specs import UpstreamKeys, UpstreamSpec

FIRST_COOLDOWN_S = 2.0
# Assumed number of user rows of an upstream that does not report it.
USUAL_ROWS = 32
# Beyond its rows a replica gets one more request per this many rows, so that no row has to wait
# until its next request comes over the network.
ROWS_PER_QUEUED = 8


class UpstreamHealth(Enum):
    """The result of a health check."""

    READY = "ready"
    NOT_READY = "not ready"
    SILENT = "silent"  # no answer in time


@dataclass(frozen=True, slots=True)
class UpstreamRows:
    """An upstream's user rows, as it reports them. `num_taken` includes requests that wait."""

    num: int
    num_taken: int


@dataclass(slots=True, eq=False)
class Upstream:
    """One server and what we know of it. Its fields are the Balancer's."""

    spec: UpstreamSpec
    pool: ConnectionPool
    keys: Callable[[], UpstreamKeys] = dict  # reads the current keys of all upstreams
    clock: Callable[[], float] = time.monotonic
    reports_usage: bool = True  # False: it refused the question for usage
    in_flight: int = 0
    health: UpstreamHealth = UpstreamHealth.READY
    num_silent_checks: int = 0  # unanswered health checks in a row
    num_failures: int = 0
    cooldown_s: float = FIRST_COOLDOWN_S
    ejected_until_s: float = 0.0
    was_unreachable: bool = False  # reason of the last ejection; False: broken answers
    rows: UpstreamRows | None = None  # None: not known
    num_taken_by_others: int = 0  # rows that others had taken at the last health check
    is_full: bool = False  # it said so itself, and none of its rows has come free since
    num_streams: int = 0  # streams that are being relayed
    last_piece_s: float = 0.0  # when the last piece of any stream came
    shared_s: float = 0.0  # see `share`
    shared_until_s: float = 0.0
    host: str = field(init=False)
    base_path: str = field(init=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.spec.url)
        self.host, self.base_path = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")
        self.name = self.host + self.base_path
        self.rows = self.rows_by_list

    @property
    def rows_by_list(self) -> UpstreamRows | None:
        """The rows in the upstreams file. How many of them others have taken is not known."""
        return UpstreamRows(self.spec.rows, 0) if self.spec.rows else None

    @property
    def key(self) -> tuple[str, str] | None:
        return self.keys().get(self.spec.url.rstrip("/"))

    def load(self, num_more: int = 0) -> float:
        """Returns the requests, and `num_more`, per weight, scaled to the usual number of rows."""
        num_rows = self.rows.num if self.rows else USUAL_ROWS
        num_requests = self.in_flight + self.num_taken_by_others + num_more
        return num_requests / self.spec.weight * USUAL_ROWS / num_rows

    def share(self) -> float:
        """Returns the upstream's seconds, divided equally among the requests in flight at the time;
        0 without a price. A request's share is the difference between the values at its end and at
        its beginning. Call this before the number of requests changes."""
        if self.spec.cents_per_hour is not None:
            now_s = self.clock()
            num_requests = max(1, self.in_flight + self.num_taken_by_others)
            self.shared_s += (now_s - self.shared_until_s) / num_requests
            self.shared_until_s = now_s
        return self.shared_s

    def begin_stream(self) -> None:
        self.num_streams += 1
        self.last_piece_s = self.clock()

    def note_piece(self) -> None:
        """A piece of a stream has come."""
        self.last_piece_s = self.clock()

    def end_stream(self) -> None:
        self.num_streams -= 1

    def has_row(self) -> bool:
        """Returns whether one more request has a row, or gets the first one that comes free."""
        if self.rows is None:
            return True
        room = self.rows.num + max(1, self.rows.num // ROWS_PER_QUEUED)
        return not self.is_full and self.in_flight + self.num_taken_by_others < room
