"""Plans follow loads: the planner with the real optimizer, over counted requests."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from cluster.controller.cycle import ControllerParts, Cycle, Planner
from cluster.controller.demand import ServerTraffic, Traffic
from cluster.controller.loop import Rollout
from cluster.controller.optimizer import OptimizerClient
from cluster.controller.sleep import StartForecast
from cluster.controller.speeds import Speeds
from cluster.replicas import Group
from tests.cluster.fleet import CountingReader, MemoryActuator, config, system, system_json

PERIOD_S = 60.0
LOW, HIGH = 3000, 6000  # requests a minute; a replica on A can do some thousand


class World:
    """A period at a time: requests come, then a cycle plans and the fleet follows."""

    def __init__(self, url: str, document: dict[str, Any], **keys: Any) -> None:
        self.actuator, self.reader = MemoryActuator(), CountingReader()
        self.system = system(document)
        self.service = OptimizerClient(url)
        self.parts = ControllerParts(
            config(self.system, **keys), self.system, self.service, self.reader
        )
        self.planner = Planner(self.parts, [])
        self.rollout = Rollout(self.actuator, self.parts.config.dry_run)
        self.at_s = 0.0
        self.starts: dict[str, StartForecast] = {}

    def period(self, requests: float, **latencies: float) -> Cycle:
        if requests:
            self.reader.serve(self.actuator.replicas(), requests, **latencies)
        self.at_s += PERIOD_S
        self.reader.at_s = self.at_s
        cycle = self.planner.cycle(self.actuator.replicas(), self.at_s, self.starts)
        for _ in range(3):
            self.rollout.step(self.planner.plan)
            self.actuator.settle()
        return cycle

    @property
    def replicas(self) -> int:
        return sum(self.actuator.ready().values())


@pytest.fixture
def make_world(optimizer_url: str) -> Callable[..., World]:
    def make(document: dict[str, Any] | None = None, **keys: Any) -> World:
        return World(optimizer_url, document or system_json(rate=LOW), **keys)

    return make


def settled(world: World, requests: float, periods: int = 4) -> int:
    for _ in range(periods):
        world.period(requests)
    return world.replicas


def test_what_the_document_expects_is_started_first(make_world: Callable[..., World]) -> None:
    world = make_world()
    first = world.period(0)
    assert first.servers["s"].has_changed
    assert world.replicas == sum(first.plan.values()) > 1


def test_replicas_follow_a_doubled_load_within_two_periods(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    before = settled(world, LOW)
    needed = settled(make_world(), HIGH)
    world.period((LOW + HIGH) / 2)  # it doubles in the middle of a period
    world.period(HIGH)
    assert world.replicas >= needed > before


def test_replicas_go_back_once_less_was_enough_for_the_whole_window(
    make_world: Callable[..., World],
) -> None:
    world = make_world(scale_down_s=180, tune=False)
    before = settled(world, HIGH)
    for _ in range(3):
        world.period(10)
        assert world.replicas == before
    world.period(10)
    assert world.replicas == 1


def test_replicas_stay_for_the_time_of_a_start_after_they_were_needed(
    make_world: Callable[..., World],
) -> None:
    world = make_world(stabilization_s=0, scale_down_s=0, tune=False)
    world.starts = {"s": StartForecast(2.5 * PERIOD_S)}
    most = settled(world, HIGH)
    for load in (LOW, LOW, LOW, HIGH) * 3:
        world.period(load)
        assert world.replicas >= most, "plans waver faster than a replica starts"
    assert settled(world, LOW, periods=8) < most


def test_a_server_changes_at_most_once_in_a_window(make_world: Callable[..., World]) -> None:
    world = make_world(stabilization_s=200, scale_down_s=0)
    changes = []
    for number in range(20):
        cycle = world.period(LOW + HIGH * (number % 2))
        if cycle.servers["s"].has_changed:
            changes.append(cycle.at_s)
    gaps = [b - a for a, b in pairwise(changes)]
    assert len(gaps) > 2
    assert min(gaps) >= 200


def test_a_cycle_that_comes_a_little_early_still_ends_a_window(
    make_world: Callable[..., World],
) -> None:
    world = make_world(stabilization_s=120, scale_down_s=0)
    settled(world, LOW)
    assert world.period(HIGH).servers["s"].has_changed
    assert "less than 120 s" in world.period(LOW).servers["s"].held
    world.at_s -= 0.01
    assert world.period(LOW).servers["s"].has_changed


def test_a_server_whose_metrics_are_unread_holds(make_world: Callable[..., World]) -> None:
    world = make_world(scale_down_s=0)
    before = settled(world, HIGH)
    world.reader.broken = {each.name for each in world.actuator.replicas()}
    for _ in range(5):
        cycle = world.period(HIGH)
        assert "metrics are not read" in cycle.servers["s"].held
        assert world.replicas == before
    world.reader.broken = set()
    world.period(HIGH)
    world.period(HIGH)
    assert world.planner.cycle(world.actuator.replicas(), world.at_s + 60).servers["s"].held == ""


def test_one_replica_that_does_not_answer_is_taken_to_be_like_the_others(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    before = settled(world, HIGH)
    world.reader.broken = {world.actuator.replicas()[0].name}
    cycle = world.period(HIGH)
    assert cycle.servers["s"].arrived_per_minute == pytest.approx(HIGH)
    assert "does not answer" in cycle.servers["s"].missed[0]
    assert world.replicas == before


def test_a_server_without_an_allocation_holds_and_says_why(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    before = settled(world, LOW)
    world.parts.system.parts["serviceClassData"]["serviceClasses"][0]["modelTargets"][0][
        "slo-itl"
    ] = 0.001
    cycle = world.period(LOW)
    assert "no allocation" in cycle.servers["s"].held
    assert world.replicas == before


def of_few_cards(**flags: Any) -> dict[str, Any]:
    """Too few for HIGH."""
    document = system_json(rate=LOW)
    counts = [{"type": "A", "count": 6}, {"type": "B", "count": 0}]
    document["system"]["capacityData"]["count"] = counts
    document["system"]["optimizerData"]["optimizer"] = flags
    return document


def test_a_server_gets_the_cards_there_are_where_its_load_needs_more(
    make_world: Callable[..., World],
) -> None:
    world = make_world(of_few_cards())
    assert settled(world, LOW) < 6
    settled(world, 100 * HIGH)
    told = world.period(100 * HIGH).servers["s"]
    assert (world.replicas, told.is_short, told.held) == (6, True, "")
    assert settled(world, LOW, periods=10) < 6
    assert not world.period(LOW).servers["s"].is_short


def test_a_document_may_have_servers_stay_as_they_are_where_cards_run_short(
    make_world: Callable[..., World],
) -> None:
    world = make_world(of_few_cards(saturationpolicy="None"))
    before = settled(world, LOW)
    assert "none of its candidates fits" in world.period(100 * HIGH).servers["s"].held
    assert world.replicas == before < 6


def test_an_optimizer_that_does_not_answer_changes_nothing(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    before = settled(world, LOW)
    world.planner._parts = ControllerParts(
        world.parts.config, world.system, OptimizerClient("http://127.0.0.1:1"), world.reader
    )
    cycle = world.period(HIGH)
    assert "127.0.0.1:1" in cycle.fault.replace("port=1", "127.0.0.1:1")
    assert world.replicas == before


def test_what_waits_in_the_proxy_has_arrived(make_world: Callable[..., World]) -> None:
    world = make_world()
    settled(world, LOW)
    world.reader.waiting = LOW
    assert world.period(LOW).servers["s"].arrived_per_minute == pytest.approx(HIGH)
    assert world.period(LOW).servers["s"].arrived_per_minute == pytest.approx(LOW)


def test_a_server_goes_to_zero_only_by_a_plan_on_read_data(
    make_world: Callable[..., World],
) -> None:
    world = make_world(system_json(rate=LOW, minNumReplicas=0), scale_down_s=0)
    settled(world, LOW)
    world.reader.broken = {each.name for each in world.actuator.replicas()}
    world.period(0)
    assert world.replicas > 0
    world.reader.broken = set()
    world.period(0)
    world.period(0)
    assert world.replicas == 0


def test_rows_of_running_processes_stay_whatever_answers_become(
    make_world: Callable[..., World],
) -> None:
    world = make_world(scale_down_s=0)
    settled(world, LOW)
    group = next(iter(world.actuator.ready()))
    assert group == Group("s", "A", 16)
    before = world.reader.counters
    # Answers of half the length would have twice the rows, of a document that says 16 at 50 tokens.
    for name, each in before.items():
        object.__setattr__(each, "completion_tokens", each.completion_tokens / 2)
        assert name
    world.period(LOW)
    assert {each.user_rows for each in world.actuator.ready()} == {16}


def test_predictions_follow_a_machine_that_became_slower(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    # What the model says of these replicas at this load.
    first = [world.period(LOW) for _ in range(3)][-1].servers["s"].predicted
    assert first.ttft_ms
    assert first.itl_ms
    slow = {"ttft_ms": 1.3 * first.ttft_ms, "itl_ms": 1.3 * first.itl_ms}
    for _ in range(10):
        cycle = world.period(LOW, **slow)
    told = cycle.servers["s"]
    assert told.predicted.itl_ms == pytest.approx(slow["itl_ms"], rel=0.15)
    assert cycle.learned.factors["m", "A"].decode == pytest.approx(1.3, rel=0.15)


def test_a_saturated_replica_is_not_taken_for_a_faster_one(optimizer_url: str) -> None:
    document, slower, rows = system(system_json()), 1.4, 16
    group = Group("s", "A", rows)
    itl_ms = slower * (10.0 + 0.5 * rows)
    ended = rows * PERIOD_S / (slower * 0.1 + 49 * itl_ms / 1000)
    # All rows are busy, and the queue is not yet what it will be in the end.
    full = Traffic(
        seconds=PERIOD_S,
        arrived=1.3 * ended,
        ended=ended,
        prompt_tokens=100 * ended,
        completion_tokens=50 * ended,
        ttft_s=1.0 * ended,
        ttft_count=ended,
        itl_s=49 * ended * itl_ms / 1000,
        itl_count=49 * ended,
    )
    service = OptimizerClient(optimizer_url)
    speeds = Speeds(document, service)
    for number in range(5):
        learned = speeds.learn(
            {"s": ServerTraffic(full, {group: full})}, {group: 1}, PERIOD_S * number
        )
    assert learned.factors["m", "A"].decode == pytest.approx(slower, rel=0.1)


def test_a_plan_needs_more_of_slower_machines(make_world: Callable[..., World]) -> None:
    as_documented = make_world(tune=False)
    before = settled(as_documented, HIGH)
    told = as_documented.period(HIGH).servers["s"].predicted
    assert told.ttft_ms
    assert told.itl_ms
    world = make_world()
    settled(world, HIGH, periods=1)
    for _ in range(10):
        world.period(HIGH, ttft_ms=1.5 * told.ttft_ms, itl_ms=1.5 * told.itl_ms)
    assert world.replicas > before


def test_what_runs_when_a_controller_starts_is_not_less_until_less_was_seen_for_long(
    make_world: Callable[..., World],
) -> None:
    world = make_world(scale_down_s=180)
    group = Group("s", "A", 16)
    world.actuator.start(group, 5)
    world.actuator.settle()
    world.planner = Planner(world.parts, world.actuator.replicas())
    for _ in range(4):
        world.period(10)
        assert world.replicas == 5
    world.period(10)
    assert world.replicas == 1


def test_two_cycles_at_once_count_nothing_twice(make_world: Callable[..., World]) -> None:
    world = make_world()
    settled(world, LOW)
    first = world.period(LOW).servers["s"].load
    world.reader.serve(world.actuator.replicas(), 100)
    again = world.planner.cycle(world.actuator.replicas(), world.at_s + 0.001).servers["s"]
    assert (again.load, again.held) == (first, "")


def test_a_replica_that_counts_nonsense_costs_nobody_a_plan(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    settled(world, LOW)
    name = world.actuator.replicas()[0].name
    world.reader.counters[name] = replace(
        world.reader.counters[name], prompt_tokens=1e15, ended=1e15, completion_tokens=1e15
    )
    assert world.period(LOW).fault == ""
    world.reader.counters[name] = replace(world.reader.counters[name], prompt_tokens=1e300)
    assert world.period(LOW).fault == ""
