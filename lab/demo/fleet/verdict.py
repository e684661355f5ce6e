"""Judges whether the day kept its levels, lost no requests, scaled to 0 and cost less. Pure."""

from collections.abc import Iterator
from itertools import pairwise

from lab.demo.cluster.verdict import LEAST_ATTAINED, Finding
from lab.demo.fleet.members import Member
from lab.demo.fleet.play import Day, Look

LEVEL_TTFT_MS, LEVEL_ITL_MS = 1500.0, 100.0


def verdict(day: Day) -> list[Finding]:
    found = [_attained(day, each) for each in day.members]
    lost = sum(bool(one.fault) for outcomes in day.outcomes.values() for one in outcomes)
    found.append(Finding(f"{lost} requests lost (0)", not lost))
    for each in day.members:
        asleep_s = seconds(day, each.name, at_zero=True)
        found.append(Finding(f"{each.title}: {asleep_s:.0f} s without a replica", asleep_s > 0))
    cost, peak = replica_s(day), static_peak_s(day)
    text = (
        f"{cost:.0f} replica seconds, {cost / peak:.0%} of the peak's replicas all day ({peak:.0f})"
    )
    return [*found, Finding(text, cost < peak)]


def replica_s(day: Day) -> float:
    """Returns the sum of all replicas' seconds, ready or not."""
    return sum(seconds(day, each.name, at_zero=False) for each in day.members)


def static_peak_s(day: Day) -> float:
    """Returns the replica seconds if each server had its largest number of replicas all day."""
    most = [max(look.running[each.name] for look in day.looks) for each in day.members]
    return day.day_s * sum(most)


def seconds(day: Day, server: str, *, at_zero: bool) -> float:
    """Returns the seconds without any replica, or the sum of all replicas' seconds."""
    return sum(
        (later.at_s - look.at_s) * (not count if at_zero else count)
        for look, later, count in _steps(day, server)
    )


def _steps(day: Day, server: str) -> Iterator[tuple[Look, Look, int]]:
    for look, later in pairwise(day.looks):
        yield look, later, look.running[server]


def _attained(day: Day, member: Member) -> Finding:
    outcomes = day.outcomes[member.name]
    part = sum(one.meets(LEVEL_TTFT_MS, LEVEL_ITL_MS) for one in outcomes) / max(len(outcomes), 1)
    text = (
        f"{member.title}: {part:.1%} of {len(outcomes)} requests within {LEVEL_TTFT_MS:g} ms to "
        f"first token and {LEVEL_ITL_MS:g} ms between tokens (at least {LEAST_ATTAINED:.0%})"
    )
    return Finding(text, part >= LEAST_ATTAINED)
