"""Plans the way from current to desired allocations: ordered steps, starts before stops, within the
cards.

Pure: any thread.
"""

from dataclasses import dataclass
from typing import Literal

from typing_extensions import TypedDict

from optimizer.answer import shortest
from optimizer.inferno_json import JsonObject
from optimizer.spec import DEFAULT_CLASS, LOWEST_PRIORITY, ServerSpec
from optimizer.system import System

Action = Literal["scale-up", "scale-down", "blocked"]
_From = TypedDict("_From", {"from": int})


class CardCount(JsonObject):
    type: str
    count: int


class Step(_From, JsonObject):
    action: Action
    server: str
    accelerator: str
    to: int
    cards: CardCount
    costDifference: float
    disruptive: bool


class StepAnswer(Step):
    order: int


class PlanAnswer(JsonObject):
    steps: list[StepAnswer]
    blocked: int
    disruptive: int
    currentCost: float
    desiredCost: float
    costDifference: float


@dataclass(slots=True)
class _Change:
    """The change of one server's replicas on one accelerator. Owned by one call of `plan`."""

    server: str
    priority: int
    accelerator: str
    card_type: str
    cards_per_replica: int
    cost_per_replica: float
    now: int
    goal: int

    @property
    def missing(self) -> int:
        return self.goal - self.now


def plan(system: System, allocated: frozenset[str]) -> PlanAnswer:
    """Returns the answer of GET /plan.

    A replica starts as soon as cards are free for it, high priorities first. If none can start, one
    stops: first those no longer needed by servers whose new replicas all run; otherwise, marked
    `disruptive`, one that holds the missing cards. Unlimited systems have cards for all.
    """
    planned = [
        server
        for server in system.servers.values()
        if server.desired_alloc.accelerator or server.name in allocated
    ]
    changes = sorted(
        (change for server in planned for change in _changes(system, server)),
        key=lambda c: (c.priority, c.server, c.accelerator),
    )
    running = ((server.model, server.current_alloc) for server in system.servers.values())
    free = None if system.optimizer.unlimited else system.cards_left(running)
    steps: list[Step] = []
    while pending := [change for change in changes if change.missing]:
        started = [step for change in pending if (step := _start(change, free))]
        steps += started or _make_room(pending, free)
    blocked = [step for step in steps if step["action"] == "blocked"]
    current = sum(server.current_alloc.total_cost for server in planned)
    desired = sum(server.desired_alloc.total_cost for server in planned)
    return {
        "steps": [{"order": order, **step} for order, step in enumerate(steps, start=1)],
        "blocked": len(blocked),
        "disruptive": sum(step["disruptive"] for step in steps),
        "currentCost": shortest(current),
        "desiredCost": shortest(desired),
        "costDifference": shortest(desired - current),
    }


def _changes(system: System, server: ServerSpec) -> list[_Change]:
    now = {part.accelerator: part.num_replicas for part in server.current_alloc.each_part()}
    goal = {part.accelerator: part.num_replicas for part in server.desired_alloc.each_part()}
    service_class = system.classes.get(server.class_name or DEFAULT_CLASS)
    priority = service_class.effective_priority if service_class else LOWEST_PRIORITY
    return [
        _Change(
            server.name,
            priority,
            accelerator,
            *system.unit(server.model, accelerator),
            now.get(accelerator, 0),
            goal.get(accelerator, 0),
        )
        for accelerator in sorted(now.keys() | goal.keys())
        if now.get(accelerator, 0) != goal.get(accelerator, 0)
    ]


def _start(change: _Change, free: dict[str, int] | None) -> Step | None:
    """Starts as many missing replicas as there are cards for; None if there are no cards."""
    if change.missing <= 0:
        return None
    count = change.missing
    if free is not None and change.cards_per_replica:
        count = min(count, free.get(change.card_type, 0) // change.cards_per_replica)
    return _step(change, count, free) if count > 0 else None


def _make_room(pending: list[_Change], free: dict[str, int] | None) -> list[Step]:
    """Stops replicas that may stop, else one that holds missing cards, else gives up all starts."""
    waiting = {change.server for change in pending if change.missing > 0}
    wanted = {change.card_type for change in pending if change.missing > 0}
    stoppable = [change for change in pending if change.missing < 0]
    settled = [change for change in stoppable if change.server not in waiting]
    if settled:
        return [_step(change, change.missing, free) for change in settled]
    if stoppable:
        in_the_way = [change for change in stoppable if change.card_type in wanted]
        victim = (in_the_way or stoppable)[-1]  # the one of the lowest priority
        return [_step(victim, victim.missing, free, disruptive=True)]
    steps = [_as_step(each, "blocked", each.now, each.goal, disruptive=False) for each in pending]
    for each in pending:
        each.goal = each.now
    return steps


def _step(
    change: _Change, count: int, free: dict[str, int] | None, disruptive: bool = False
) -> Step:
    """Carries out a start (count > 0) or a stop."""
    before = change.now
    change.now += count
    if free is not None:
        free[change.card_type] = free.get(change.card_type, 0) - count * change.cards_per_replica
    action: Action = "scale-up" if count > 0 else "scale-down"
    return _as_step(change, action, before, change.now, disruptive)


def _as_step(change: _Change, action: Action, before: int, after: int, disruptive: bool) -> Step:
    count = after - before
    return {
        "action": action,
        "server": change.server,
        "accelerator": change.accelerator,
        "from": before,
        "to": after,
        "cards": {"type": change.card_type, "count": count * change.cards_per_replica},
        "costDifference": shortest(count * change.cost_per_replica),
        "disruptive": disruptive,
    }
