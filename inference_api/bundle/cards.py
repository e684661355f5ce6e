"""Describes a bundle's members for `/bundle` and `/v1/models`, where they are called experts."""

import time
from collections.abc import Mapping
from typing import Literal

from common.wire import WireDict
from inference_api.bundle.members import MemberSnapshot, MemberState
from inference_api.bundle.residents import bundle_of
from inference_api.core.decode_backend import DecodeBackend
from inference_api.settings.bundle_file import BundleMember

Status = Literal["unloaded", "loading", "loaded"]
STATUS: Mapping[MemberState, Status] = {  # llama.cpp's names
    MemberState.ABSENT: "unloaded",
    MemberState.PACKING: "loading",
    MemberState.ON_DISK: "unloaded",
    MemberState.LOADING: "loading",
    MemberState.RESIDENT: "loaded",
    MemberState.DRAINING: "loaded",
    MemberState.FAILED: "unloaded",
}


class ExpertStatus(WireDict):
    value: Status
    failed: bool


class ExpertBytes(WireDict):
    """The bytes that it takes now: 0 while it is not loaded."""

    weights: int
    other: int
    cache: int


class ExpertRows(WireDict):
    min: int
    max: int


class ExpertCard(WireDict):
    """`last_used` is in seconds since 1970; null if it was not used since start."""

    description: str
    state: MemberState
    status: ExpertStatus
    context: int
    rows: ExpertRows
    bytes: ExpertBytes
    last_used: float | None
    draft: str | None
    pinned: bool


class ExpertState(ExpertCard):
    """`queue` counts its waiting requests, `running` the running ones, `switches` its loads.
    `reason` says why it failed; empty if it did not."""

    name: str
    queue: int
    running: int
    switches: int
    evictions: dict[str, int]
    failures: dict[str, int]
    reason: str


class Limits(WireDict):
    """The bundle's limits on bytes, rows and requests."""

    memory_limit: int
    fast_memory_limit: int
    user_rows: int
    max_queue: int


class Used(WireDict):
    fast_memory: int
    rows: int
    queue: int


class BundleState(WireDict):
    """`loading` is the expert that is being loaded or waits for room; null if none."""

    limits: Limits
    used: Used
    loading: str | None
    experts: list[ExpertState]


def expert_card(backend: DecodeBackend, member: BundleMember, state: MemberSnapshot) -> ExpertCard:
    is_failed = state.state is MemberState.FAILED
    last_used = None
    if state.last_used_s is not None:
        last_used = time.time() - (time.monotonic() - state.last_used_s)
    return ExpertCard(
        description=member.description,
        state=state.state,
        status=ExpertStatus(value=STATUS[state.state], failed=is_failed),
        context=backend.served[member.name].max_seq_len,
        rows=ExpertRows(min=member.rows.min, max=member.rows.max or backend.settings.user_rows),
        bytes=ExpertBytes(
            weights=state.weights_bytes, other=state.other_bytes, cache=state.cache_bytes
        ),
        last_used=last_used,
        draft=None if member.draft is None else member.draft.source,
        pinned=member.pinned,
    )


def bundle_state(backend: DecodeBackend) -> BundleState | None:
    """Returns the bundle's state; None without a bundle, or before its members are known."""
    settings, input_queue = backend.settings, backend.input_queue
    bundle, residents = settings.bundle, bundle_of(backend)
    if bundle is None or residents is None:
        return None
    state = residents.snapshot
    members = []
    for each in bundle.members:
        snapshot = state.members[each.name]
        members.append(
            ExpertState(
                **expert_card(backend, each, snapshot),
                name=each.name,
                queue=input_queue.num_waiting(each.name),
                running=snapshot.num_running,
                switches=snapshot.num_loads,
                evictions={str(kind): count for kind, count in snapshot.evictions.items()},
                failures={str(kind): count for kind, count in snapshot.failures.items()},
                reason=snapshot.reason,
            )
        )
    return BundleState(
        limits=Limits(
            memory_limit=bundle.memory_limit,
            fast_memory_limit=bundle.fast_memory_limit,
            user_rows=settings.user_rows,
            max_queue=bundle.max_queue,
        ),
        used=Used(fast_memory=state.used_bytes, rows=state.num_running, queue=len(input_queue)),
        loading=state.loading_next,
        experts=members,
    )
