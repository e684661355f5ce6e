"""Plans the way from current to desired allocations: ordered steps, starts before stops, within the
cards.

Pure: any thread.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

from typing_extensions import TypedDict

from common.wire import WireDict
from optimizer.answer import shortest
from optimizer.spec import DEFAULT_CLASS, LOWEST_PRIORITY, ServerSpec
from optimizer.system import System

Action = Literal["scale-up", "scale-down", "blocked"]
_From = TypedDict("_From", {"from": int})


class CardCount(WireDict):
    type: str
    count: int


class Step(_From, WireDict):
    action: Action
    server: str
    accelerator: str
    to: int
    cards: CardCount
    costDifference: float
    disruptive: bool


class StepAnswer(Step):
    order: int


class PlanAnswer(WireDict):
    steps: list[StepAnswer]
    blocked: int
    disruptive: int
    currentCost: float
    desiredCost: float
    costDifference: float


@dataclass(order=True, slots=True)
class _Change:
    """The change of one server's replicas on one accelerator. Owned by one call of `plan`.

    Changes are in the order of the first three fields, which are different for each."""

    priority: int
    server: str
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

    A replica starts as soon as cards are free for it, high priorities first. If none can start,
    replicas stop that servers no longer need because their new ones all run. If there are none, one
    replica that holds missing cards stops, marked `disruptive`. Unlimited systems never lack cards.
    """
    planned = [
        server
        for server in system.servers.values()
        if server.desired_alloc.accelerator or server.name in allocated
    ]
    changes = sorted(change for server in planned for change in _changes(system, server))
    running = ((server.model, server.current_alloc) for server in system.servers.values())
    free = None if system.optimizer.unlimited else system.cards_left(running)
    steps = _Schedule(changes, free).steps()
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
            priority,
            server.name,
            accelerator,
            *system.unit(server.model, accelerator),
            now.get(accelerator, 0),
            goal.get(accelerator, 0),
        )
        for accelerator in sorted(now.keys() | goal.keys())
        if now.get(accelerator, 0) != goal.get(accelerator, 0)
    ]


class _Schedule:
    """The changes still to be made. Owned by one call of `plan`.

    Its time grows with the number of steps: a start that lacks cards is tried again only when cards
    of its type come free, and each stop is looked at twice at most.
    """

    def __init__(self, changes: Sequence[_Change], free: dict[str, int] | None) -> None:
        """`changes` are in order; `free` has the free cards of each type; None if unlimited."""
        self._changes, self._free = changes, free
        starts = [change for change in changes if change.missing > 0]
        self._num_starts = Counter(change.server for change in starts)
        self._num_wanting = Counter(change.card_type for change in starts)
        # Keyed by card type and cards per replica: if the first of a queue does not fit, none does.
        self._starts: dict[str, dict[int, deque[_Change]]] = {}
        for change in starts:
            queues = self._starts.setdefault(change.card_type, {})
            queues.setdefault(change.cards_per_replica, deque()).append(change)
        self._stops = [change for change in changes if change.missing < 0]
        self._not_in_the_way: deque[_Change] = deque()
        self._settled = [each for each in self._stops if each.server not in self._num_starts]
        self._unsettled: defaultdict[str, list[_Change]] = defaultdict(list)  # keyed by server
        for change in self._stops:
            if change.server in self._num_starts:
                self._unsettled[change.server].append(change)

    def steps(self) -> list[Step]:
        steps: list[Step] = []
        freed = set(self._starts)
        while True:
            steps += self._start(freed)
            stops, is_disruptive = self._take_settled(), False
            if not stops:
                stops, is_disruptive = self._victim(), True
            if not stops:
                break
            steps += [_step(change, change.missing, self._free, is_disruptive) for change in stops]
            freed = {change.card_type for change in stops}
        return steps + [
            _as_step(change, "blocked", change.now, change.goal, disruptive=False)
            for change in self._changes
            if change.missing
        ]

    def _start(self, card_types: Iterable[str]) -> list[Step]:
        """Start all replicas for which there are cards of these types."""
        started = [each for card_type in card_types for each in self._start_of(card_type)]
        return [step for _, step in sorted(started, key=itemgetter(0))]

    def _start_of(self, card_type: str) -> Iterator[tuple[_Change, Step]]:
        """Yields steps, each with its change."""
        queues = self._starts.get(card_type, {})
        while ready := [queue for cards, queue in queues.items() if self._has(card_type, cards)]:
            queue = min(ready, key=itemgetter(0))
            change, count = queue[0], queue[0].missing
            if self._free is not None and change.cards_per_replica:
                count = min(count, self._free[card_type] // change.cards_per_replica)
            yield change, _step(change, count, self._free)
            if not change.missing:
                queue.popleft()
                if not queue:
                    del queues[change.cards_per_replica]
                self._num_wanting[card_type] -= 1
                self._num_starts[change.server] -= 1
                if not self._num_starts[change.server]:
                    self._settled += self._unsettled.pop(change.server, [])

    def _has(self, card_type: str, cards: int) -> bool:
        return self._free is None or not cards or self._free.get(card_type, 0) >= cards

    def _take_settled(self) -> list[_Change]:
        """Returns the stops of servers whose new replicas all run."""
        settled, self._settled = sorted(each for each in self._settled if each.missing), []
        return settled

    def _victim(self) -> list[_Change]:
        """Returns the stop of the lowest priority that frees missing cards, or else any other stop;
        empty without stops. A card type that nobody waits for is never missing again."""
        while self._stops:
            change = self._stops.pop()
            if change.missing and self._num_wanting[change.card_type]:
                return [change]
            if change.missing:
                self._not_in_the_way.append(change)
        while self._not_in_the_way:
            change = self._not_in_the_way.popleft()
            if change.missing:
                return [change]
        return []


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
