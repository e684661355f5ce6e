"""Plays the day: runs services and a load for each server, and counts replicas."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cluster.actuators.local import LocalMachine
from lab.demo.cluster.load import Load, Request, RequestOutcome
from lab.demo.cluster.processes import running_services
from lab.demo.cluster.watch import state_of
from lab.demo.fleet.files import write_fleet
from lab.demo.fleet.members import OUT_TOKENS, Member
from lab.kit.shares import HeldReplicas, choose_limiter

LOOK_S, REPORT_S = 0.25, 15.0
PERIOD_S = 5.0  # the controller's
START_SHARE = 0.8  # cores; vLLM's start takes half a minute of a whole core
QUEUE_TIMEOUT_S = 90  # in the proxy, so that requests wait for a start


@dataclass(frozen=True, slots=True)
class Look:
    """The numbers of running and of ready replicas by server, at a moment of the day."""

    at_s: float
    running: Mapping[str, int]
    ready: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Day:
    """A run of the day. `outcomes` has the requests by server."""

    day_s: float
    members: Sequence[Member]
    outcomes: Mapping[str, Sequence[RequestOutcome]]
    looks: Sequence[Look]


def play(
    members: Sequence[Member],
    folder: Path,
    day_s: float,
    report: Callable[[str], None],
    period_s: float = PERIOD_S,
) -> Day:
    """Plays the day. Raises DemoFailed."""
    replicas = folder / "replicas"
    settings = {"QUEUE_TIMEOUT": str(QUEUE_TIMEOUT_S)}
    with ExitStack() as stack:
        stack.callback(_end_all, replicas)
        addresses, token = stack.enter_context(
            running_services(folder, partial(write_fleet, folder, members, period_s), settings)
        )
        held = HeldReplicas(replicas, stack.enter_context(closing(choose_limiter())))
        begun_s = time.monotonic()
        loads: dict[str, Load] = {}
        for seed, each in enumerate(members):
            request = Request(addresses.proxy, token, each.name, OUT_TOKENS)
            rate_at = partial(each.rate_at, day_s=day_s)
            loads[each.name] = Load(request, rate_at, each.peak_per_s, seed)
            stack.callback(loads[each.name].end)
        looks: list[Look] = []
        reported_s = 0.0
        while (at_s := time.monotonic() - begun_s) < day_s:
            state = state_of(addresses.url(addresses.controller))
            _hold(held, members, state)
            looks.append(_look(at_s, members, state))
            if at_s >= reported_s:
                reported_s += REPORT_S
                report(_line(looks[-1], members, loads, day_s))
            time.sleep(LOOK_S)
        for load in loads.values():
            load.end()
        return Day(
            day_s, members, {name: tuple(load.outcomes) for name, load in loads.items()}, looks
        )


def _look(at_s: float, members: Sequence[Member], state: Mapping[str, Any]) -> Look:
    by_state = {each.name: state["servers"][each.name]["replicas"] for each in members}
    running = {name: sum(counts.values()) for name, counts in by_state.items()}
    return Look(at_s, running, {name: each.get("ready", 0) for name, each in by_state.items()})


def _hold(held: HeldReplicas, members: Sequence[Member], state: Mapping[str, Any]) -> None:
    """Limits each replica to its share, or to `START_SHARE` while it starts. A starting replica
    then takes nothing from others, as if on a machine of its own."""
    for member in members:
        urls: dict[bool, set[str]] = {True: set(), False: set()}
        for each in state["replicas"]:
            if each["server"] == member.name:
                urls[each["state"] == "starting"].add(each["url"])
        held.hold(urls[True], START_SHARE)
        held.hold(urls[False], member.share)


def _line(look: Look, members: Sequence[Member], loads: Mapping[str, Load], day_s: float) -> str:
    parts = [
        f"{each.title} {look.ready[each.name]}/{look.running[each.name]} "
        f"at {each.rate_at(look.at_s, day_s):.1f}/s, {len(loads[each.name].outcomes)} answered"
        for each in members
    ]
    return f"{look.at_s:6.0f} s  " + "; ".join(parts)


def _end_all(folder: Path) -> None:
    machine = LocalMachine(folder)
    for each in machine.placed():
        machine.remove(each.name)
    machine.close()
