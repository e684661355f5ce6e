"""Plans what `bench-loop` measures, and in which order: closed loops and checks in turn.

The curve is fitted to closed loops alone, and checked with Poisson loads. Between two checks there
are always closed loops, which show how fast the machine is at that moment. A row is measured again
if the host took too much processor time from a virtual machine; the row's results do not matter for
that. Pure: a generator yields rows to measure and gets their points back.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

from benchmarking.analysis.closed_loops import closed_loops
from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.search import Shape
from benchmarking.records import Workload
from lab.kit.errors import Disturbed
from lab.kit.mixed_loops import rate_per_s

FIRST_EACH = 2  # requests of each user before their duration is known
LEAST_EACH = 6  # least requests of each user of a closed loop; the last does not count
MIXED_SCV = 0.05  # answer lengths in closed loops; users of equal ones would begin together
CROWDS_EACH = 3  # least requests of each user of a crowd, of which only the rate counts
AT_ONCE = (2, 4, 8)  # numbers of users who pause and ask together
THINK_S = 0.02  # pause of a single user, who then finds the server idle and its caches cold


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """The plan of a loop. `shape` is the shape of requests to check, `places` the number of
    requests that the server takes at once. Seconds are per row."""

    shape: Shape
    places: int
    closed_s: float
    check_s: float
    rounds: int = 4  # each has all checks
    passes: int = 2  # each has all closed loops, spread over the rounds
    seed: int = 0
    accelerator: str = "this machine"
    length_factors: tuple[float, ...] = (0.5, 1.0, 2.0)  # on the prompt length to check
    check_shares: tuple[float, ...] = (0.5, 0.65, 0.8, 0.9)  # shares of the crowd's rate
    max_stolen_share: float = 0.1  # cores, in a row that counts
    max_disturbed: int = 40  # rows that do not count

    @property
    def crowd(self) -> Workload:
        """Returns a load of more users than the server has places. Its rate is the capacity."""
        return self.shape.at_concurrency(2 * self.places, FIRST_EACH)

    def closed_loops(self) -> list[Workload]:
        """Returns loops of 1, 2, 4, ... users with the shortest and longest prompts, and loops with
        the checks' prompts of the numbers between and of all places, which most checks are near."""
        short, same, long = (self._with_prompts(factor) for factor in self.length_factors)
        doubled = list(_doubled(self.places))
        between = [(low + high) // 2 for low, high in pairwise(doubled) if high > low + 1]
        each = [(users, shape) for users in doubled for shape in (short, long)]
        each += [(users, same) for users in [*between, self.places]]
        return [
            replace(
                shape.at_concurrency(users, FIRST_EACH),
                output_scv=MIXED_SCV,
                think_s=THINK_S if users == 1 else 0.0,
            )
            for users, shape in each
        ]

    def volleys(self) -> list[Workload]:
        """Returns loads of users with equal requests, who end together, pause, and ask at once."""
        return [
            replace(self.shape.at_concurrency(users, FIRST_EACH), think_s=THINK_S)
            for users in AT_ONCE
            if users <= self.places
        ]

    def checks(self, capacity_per_s: float) -> list[Workload]:
        return [
            self.shape.at_rate(share * capacity_per_s, self.check_s) for share in self.check_shares
        ]

    def loads(self, capacity_per_s: float) -> list[tuple[Workload, bool]]:
        """Returns loads in order, and whether each is a check. Every round has all checks, in
        random order, and the closed loops and volleys that `in_turn` puts between them."""
        rng = Random(self.seed)
        rounds = [self.checks(capacity_per_s) for _ in range(self.rounds)]
        for checks in rounds:
            rng.shuffle(checks)
        return self.in_turn(rounds)

    def in_turn(self, rounds: Sequence[Sequence[Workload]]) -> list[tuple[Workload, bool]]:
        """Returns the rounds of checks in order. Between checks are the closed loops and volleys of
        all passes, in random order, and a crowd per round."""
        rng = Random(self.seed)
        closed = []
        for _ in range(self.passes):
            of_pass = self.closed_loops() + self.volleys()
            rng.shuffle(of_pass)
            closed += of_pass
        loads = []
        for number, checks in enumerate(rounds):
            beside = [*closed[number :: len(rounds)], self.crowd]
            parts = [beside[place :: len(checks)] for place in range(len(checks))]
            for check, part in zip(checks, parts, strict=True):
                loads += [*((load, False) for load in part), (check, True)]
        return loads

    def _with_prompts(self, factor: float) -> Shape:
        return replace(self.shape, input_tokens=round(factor * self.shape.input_tokens))


def _doubled(places: int) -> Iterator[int]:
    users = 1
    while users < places:
        yield users
        users *= 2
    yield places


@dataclass(frozen=True, slots=True)
class Rows:
    """All measured rows, in order. `checked` and `disturbed` are indices of rows."""

    points: tuple[LoadPoint, ...]
    checked: tuple[int, ...]
    disturbed: tuple[int, ...]

    def crowds(self, plan: LoopPlan) -> list[LoadPoint]:
        """Returns the loops of more users than places."""
        return [
            point
            for row, point in enumerate(self.points)
            if row not in self.disturbed and (point.load.concurrency or 0) > plan.places
        ]

    def closed(self) -> list[LoadPoint]:
        """Returns the closed loops without the first row, in which the server was new."""
        return [
            point
            for row, point in enumerate(self.points)
            if row
            and row not in self.disturbed
            and point.load.concurrency is not None
            and not is_volley(point.load)
        ]

    def volleys(self) -> list[LoadPoint]:
        return [
            point
            for row, point in enumerate(self.points)
            if row not in self.disturbed and is_volley(point.load)
        ]


def is_volley(load: Workload) -> bool:
    """Returns whether a load's users, of whom there are several, ask together."""
    return load.think_s > 0 and (load.concurrency or 0) > 1


@dataclass(slots=True)
class _Times:
    """Chooses how many requests of a user fill a time, from the times of loops of other sizes."""

    places: int
    e2e_s_by_users: dict[int, float] = field(default_factory=dict)

    def sized(self, load: Workload, seconds: float) -> Workload:
        users = load.concurrency
        if users is None or not self.e2e_s_by_users:
            return load
        known = min(self.e2e_s_by_users, key=lambda each: (abs(each - users), each))
        e2e_s = self.e2e_s_by_users[known] * max(users / known, 1.0) + load.think_s
        each = max(round(seconds / e2e_s), CROWDS_EACH if users > self.places else LEAST_EACH)
        return replace(load, num_requests=each * users)

    def learn(self, point: LoadPoint) -> None:
        if point.load.concurrency is not None and point.e2e is not None:
            self.e2e_s_by_users[point.load.concurrency] = point.e2e.mean.value / 1000


Turns = Generator[Workload, LoadPoint, Rows]
Loads = Callable[[float], Sequence[tuple[Workload, bool]]]
"""Takes the capacity in requests per second. Returns loads, and whether each is a check."""


def measure_in_turn(plan: LoopPlan, loads: Loads | None = None) -> Turns:
    """Measures one user, the crowd, which finds the capacity, then closed loops and checks, and the
    crowd again. `loads` replaces the plan's. A row in which the host took too much is measured
    again at once. Raises Disturbed."""
    points: list[LoadPoint] = []
    disturbed: list[int] = []
    times = _Times(plan.places)

    def undisturbed(load: Workload) -> Generator[Workload, LoadPoint, LoadPoint]:
        while True:
            point = yield times.sized(load, plan.closed_s)
            points.append(point)
            times.learn(point)
            if (point.stolen_share or 0.0) <= plan.max_stolen_share:
                return point
            disturbed.append(len(points) - 1)
            if len(disturbed) > plan.max_disturbed:
                raise Disturbed(len(points), len(disturbed), plan.max_stolen_share)

    yield from undisturbed(plan.closed_loops()[0])
    crowd = yield from undisturbed(plan.crowd)
    checked = []
    [loop] = closed_loops([crowd], None)
    for load, is_check in (loads or plan.loads)(rate_per_s(loop)):
        yield from undisturbed(load)
        if is_check:
            checked.append(len(points) - 1)
    yield from undisturbed(plan.crowd)
    return Rows(tuple(points), tuple(checked), tuple(disturbed))
