"""The needs and states of a bundle's members: the values that `residency` works with.

All are immutable except `Member` and `Stay`, which only the decode thread uses.
"""

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from inference_api.request import Switch


class MemberState(StrEnum):
    ABSENT = "absent"  # not packed yet
    PACKING = "packing"
    ON_DISK = "on_disk"
    LOADING = "loading"
    RESIDENT = "resident"
    DRAINING = "draining"  # its rows finish and new requests wait, until its memory is freed
    FAILED = "failed"


class Eviction(StrEnum):
    """Why a member was unloaded."""

    IDLE = "idle"  # to make room, while it was unused
    PATIENCE = "patience"  # to make room for a request that had waited too long
    MEMORY = "memory"  # a load found less free memory than expected
    OPERATOR = "operator"


class Failure(StrEnum):
    """The kind of a failure, whose reason has the details."""

    LOAD = "load"
    MEMORY = "memory"
    TIMEOUT = "timeout"
    TOO_LARGE = "too_large"


class UnloadMode(StrEnum):
    IDLE = "idle"
    DRAIN = "drain"
    FORCE = "force"


@dataclass(frozen=True, slots=True)
class Needs:
    """The memory and rows of one member. `rows_min` is at least 1. `shared` has the bytes of its
    weights that are mapped only once for all members that use them. `guaranteed_bytes` is the cache
    of `rows_min` rows; `row_bytes` is the memory of a row in addition to its pages."""

    weights_bytes: int
    other_bytes: int
    guaranteed_bytes: int
    row_bytes: int
    rows_min: int
    rows_max: int
    is_pinned: bool = False
    shared: Mapping[Hashable, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits of a bundle. The memory limit excludes the scratch memory of a step."""

    fast_memory_limit_bytes: int
    user_rows: int
    patience_s: float
    min_residence_s: float
    load_timeout_s: float


@dataclass(frozen=True, slots=True)
class LoadMember:
    """Load this member, after packing it if needed."""

    name: str


@dataclass(frozen=True, slots=True)
class Unload:
    """Free the memory of this member; none of its rows is busy."""

    name: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Fail all requests that wait for this member, because of `reason`."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class EndRows:
    """End all requests that run on this member, because an operator forces it out."""

    name: str


Effect = LoadMember | Unload | Refuse | EndRows


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """The state of one member. Bytes are those that it holds now. `last_used_s` is when a request
    last took or returned one of its rows; None if never. `reason` says why it failed."""

    state: MemberState
    reason: str
    weights_bytes: int
    other_bytes: int
    cache_bytes: int
    num_running: int
    last_used_s: float | None
    num_loads: int
    evictions: Mapping[Eviction, int]
    failures: Mapping[Failure, int]


@dataclass(frozen=True, slots=True)
class ResidencySnapshot:
    """The state of the bundle. `used_bytes` counts shared weights once. `loading_next` is the
    member that is being loaded or waits for room, if any."""

    used_bytes: int
    num_running: int
    loading_next: str | None
    members: Mapping[str, MemberSnapshot]


@dataclass(slots=True)
class Stay:
    """One stay of a member in memory: the times of its stages, and the member used before it."""

    head_arrived_s: float  # when the oldest waiting request came, or an operator asked
    ticketed_s: float
    issued_s: float
    from_name: str | None
    ready_s: float = math.inf
    left_s: float = math.inf  # when it stopped taking requests

    def switch(self, arrived_s: float) -> Switch:
        ticketed_s, issued_s = max(arrived_s, self.ticketed_s), max(arrived_s, self.issued_s)
        return Switch(
            wait_s=ticketed_s - arrived_s,
            evict_s=issued_s - ticketed_s,
            load_s=self.ready_s - issued_s,
            is_initiator=arrived_s <= self.head_arrived_s,
            from_name=self.from_name,
        )


@dataclass(slots=True, eq=False)
class Member:
    """The decode thread's state of one member."""

    name: str
    needs: Needs
    state: MemberState = MemberState.ABSENT
    reason: str = ""
    is_packed: bool = False
    num_running: int = 0
    lent_bytes: int = 0  # pages beyond those of its guaranteed rows
    requested_s: float | None = None  # when an operator asked to load it; None once it is loaded
    eviction: Eviction = Eviction.IDLE  # why it drains, if it does
    protected_until_s: float = 0.0
    last_used_s: float | None = None
    stay: Stay | None = None
    earlier_stay: Stay | None = None
    num_loads: int = 0
    evictions: Counter[Eviction] = field(default_factory=Counter)
    failures: Counter[Failure] = field(default_factory=Counter)

    @property
    def ready_s(self) -> float:
        return math.inf if self.stay is None else self.stay.ready_s

    @property
    def unloaded_state(self) -> MemberState:
        return MemberState.ON_DISK if self.is_packed else MemberState.ABSENT

    @property
    def used_or_ready_s(self) -> float:
        return self.ready_s if self.last_used_s is None else max(self.last_used_s, self.ready_s)

    @property
    def borrowed_bytes(self) -> int:
        """The memory that its rows take beyond that of its guaranteed rows."""
        num_borrowed = max(0, self.num_running - self.needs.rows_min)
        return num_borrowed * self.needs.row_bytes + self.lent_bytes

    @property
    def num_owed(self) -> int:
        """The number of guaranteed rows that it does not use."""
        return max(0, self.needs.rows_min - self.num_running)

    def switch(self, arrived_s: float) -> Switch | None:
        """Returns the switch of a request from `arrived_s`; None if the member was loaded then."""
        stays = [stay for stay in (self.stay, self.earlier_stay) if stay is not None]
        if self.stay is None or any(stay.ready_s <= arrived_s < stay.left_s for stay in stays):
            return None
        return self.stay.switch(arrived_s)

    def snapshot(self, is_held: bool) -> MemberSnapshot:
        needs = self.needs
        cache_bytes = needs.guaranteed_bytes + self.borrowed_bytes
        return MemberSnapshot(
            state=self.state,
            reason=self.reason,
            weights_bytes=needs.weights_bytes if is_held else 0,
            other_bytes=needs.other_bytes if is_held else 0,
            cache_bytes=cache_bytes if is_held else 0,
            num_running=self.num_running,
            last_used_s=self.last_used_s,
            num_loads=self.num_loads,
            evictions=dict(self.evictions),
            failures=dict(self.failures),
        )
