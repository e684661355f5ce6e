"""Polls the controller's state a few times a second, and makes a row for each of its cycles."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from common.fetch import PROBE, fetch
from lab.demo.cluster.load import Load, RequestOutcome
from lab.demo.cluster.story import SERVER, Story

LOOK_S = 0.25

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """The numbers of planned and ready replicas at a moment of the load."""

    at_s: float
    desired: int
    ready: int


@dataclass(frozen=True, slots=True)
class Row:
    """The period up to a cycle: the replicas' mean latencies, measured and predicted. `attained` is
    the share of requests ended in the period that met their levels; None without requests."""

    at_s: float
    offered_per_s: float
    desired: int
    ready: int
    ttft_ms: float | None
    predicted_ttft_ms: float | None
    itl_ms: float | None
    predicted_itl_ms: float | None
    attained: float | None
    has_changed: bool
    why: str


class Watch:
    """Watches a run. Owner's thread only. `looks` and `rows` grow."""

    def __init__(
        self,
        controller_url: str,
        load: Load,
        story: Story,
        see: Callable[[set[str], float], None] = lambda _urls, _at_s: None,
    ) -> None:
        """`see` gets the URLs of ready replicas, and the time, at every look."""
        self._url, self._load, self._story, self._see = controller_url, load, story, see
        self._cycle = 0
        self._before_s = 0.0
        self.looks: list[Look] = []
        self.rows: list[Row] = []

    def until(self, end_s: float, report: Callable[[Row], None]) -> None:
        """Watch until a moment of the load."""
        while self._load.now_s < end_s:
            self._look(report)
            time.sleep(LOOK_S)

    def _look(self, report: Callable[[Row], None]) -> None:
        state = state_of(self._url)
        server = state["servers"][SERVER]
        at_s = self._load.now_s
        self._see(ready_urls(state), at_s)
        desired = sum(each["replicas"] for each in server["plan"])
        self.looks.append(Look(at_s, desired, server["replicas"].get("ready", 0)))
        cycle = state["cycle"]
        if cycle is None or cycle["cycle"] == self._cycle:
            return
        is_first, self._cycle = not self._cycle, cycle["cycle"]
        if not is_first:
            self.rows.append(self._row(cycle))
            report(self.rows[-1])
        self._before_s = at_s

    def _row(self, cycle: Json) -> Row:
        look, seen = self.looks[-1], cycle["servers"][SERVER]
        ended = [each for each in list(self._load.outcomes) if self._before_s < each.ended_s]
        return Row(
            look.at_s,
            self._story.rate_at(look.at_s - self._story.period_s / 2),
            look.desired,
            look.ready,
            seen["measured"]["ttft_ms"],
            seen["predicted"]["ttft_ms"],
            seen["measured"]["itl_ms"],
            seen["predicted"]["itl_ms"],
            attainment(ended, self._story),
            seen["has_changed"],
            cycle["fault"] or _why(seen),
        )


def state_of(controller_url: str) -> Json:
    """Returns the answer of `GET /state`."""
    state: Json = json.loads(fetch(f"{controller_url}/state", PROBE))
    return state


def ready_urls(state: Json) -> set[str]:
    return {each["url"] for each in state["replicas"] if each["state"] == "ready"}


def attainment(outcomes: Sequence[RequestOutcome], story: Story) -> float | None:
    """Returns the share of requests that met both levels, as no lost one did; None without any."""
    if not outcomes:
        return None
    return sum(each.meets(story.slo_ttft_ms, story.slo_itl_ms) for each in outcomes) / len(outcomes)


def _why(seen: Json) -> str:
    came, planned = seen["arrived_per_minute"], seen["load"]["arrivalRate"]
    came_text = "" if came is None else f"{came / 60:.1f}/s came, "
    if seen["has_changed"]:
        replicas = sum(each["replicas"] for each in seen["plan"])
        return f"{replicas} replicas: {came_text}planned for {planned / 60:.1f}/s"
    if seen["held"]:
        return str(seen["held"])
    return f"{came_text}planned for {planned / 60:.1f}/s"
