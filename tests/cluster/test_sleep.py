"""From one replica to none and back, by who asks."""

from collections.abc import Callable
from typing import Any

from cluster.controller.sleep import StartForecast, StartTimes
from cluster.replicas import Group, Replica, ReplicaState
from cluster.server_keys import ServerKeys
from lab.kit.servers import eventually
from tests.cluster.fleet import system_json
from tests.cluster.test_controller import DEADLINE_S, Running, run  # noqa: F401
from tests.cluster.test_cycle import LOW, PERIOD_S, World, make_world, settled  # noqa: F401

MakeWorld = Callable[..., World]
GROUP = Group("s", "A", 16)


def sleepy(make_world: MakeWorld, idle_s: float = 3 * PERIOD_S, **keys: Any) -> World:  # noqa: F811
    servers = {"s": ServerKeys(idle_s=idle_s)}
    document = system_json(rate=LOW, minNumReplicas=0)
    return make_world(document, **{"servers": servers, "stabilization_s": 0, "tune": False, **keys})


def test_a_server_goes_to_0_once_nobody_has_asked_for_its_idle_time(
    make_world: MakeWorld,  # noqa: F811
) -> None:
    world = sleepy(make_world, scale_down_s=0)
    assert settled(world, LOW) > 1
    counts = [settled(world, 0, periods=1) for _ in range(4)]
    assert counts == [1, 1, 0, 0]


def test_less_than_the_window_of_demand_is_enough_to_be_idle(
    make_world: MakeWorld,  # noqa: F811
) -> None:
    world = sleepy(make_world, scale_down_s=20 * PERIOD_S)
    assert settled(world, LOW) > 1
    assert settled(world, 0, periods=3) == 0


def test_who_has_requests_is_not_idle_though_none_come(make_world: MakeWorld) -> None:  # noqa: F811
    world = sleepy(make_world, scale_down_s=0)
    settled(world, 5)
    (name,) = (each.name for each in world.actuator.replicas())
    object.__setattr__(world.reader.counters[name], "running", 1.0)
    assert settled(world, 0, periods=10) == 1
    object.__setattr__(world.reader.counters[name], "running", 0.0)
    assert settled(world, 0, periods=4) == 0


def test_a_server_that_is_woken_has_a_replica_for_its_idle_time(
    make_world: MakeWorld,  # noqa: F811
) -> None:
    world = sleepy(make_world, stabilization_s=10 * PERIOD_S)
    settled(world, LOW)
    assert settled(world, 0, periods=12) == 0
    assert not world.planner.wake([], world.at_s)
    assert world.planner.wake(["s"], world.at_s)
    assert settled(world, 0, periods=1) == 1, "however little time has passed since it went"
    assert not world.planner.wake(["s"], world.at_s)
    assert settled(world, 0, periods=2) == 1


def test_a_server_that_expects_no_load_begins_asleep(make_world: MakeWorld) -> None:  # noqa: F811
    world = make_world(system_json(rate=0, minNumReplicas=0))
    assert settled(world, 0, periods=2) == 0
    world.planner.wake(["s"], world.at_s)
    assert settled(world, 0, periods=1) == 1


def test_a_server_that_may_not_sleep_is_never_idle(make_world: MakeWorld) -> None:  # noqa: F811
    world = make_world(system_json(rate=0, minNumReplicas=1), scale_down_s=0)
    assert settled(world, 0, periods=10) == 1


def replica(name: str, state: ReplicaState) -> Replica:
    return Replica(name, GROUP, state)


STARTING, READY, DRAINING = ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING


def test_a_start_is_forecast_by_the_longest_of_the_last() -> None:
    starts = StartTimes()
    assert StartForecast().ready_in_s(0.0) is None
    for number, took_s in enumerate((60.0, 7.0, 9.0, 8.0, 5.0, 6.0)):
        begun_s = 100.0 * number
        starts.begin([f"r{number}"], begun_s)
        starts.see([replica(f"r{number}", STARTING)], begun_s + 1)
        told = starts.see([replica(f"r{number}", READY)], begun_s + took_s)["s"]
    assert told.longest_s == 9
    assert told.ready_in_s(begun_s + took_s + 100) == 0, "it is ready"
    gone = starts.see([replica("r5", DRAINING)], 1000.0)["s"]
    assert gone.ready_in_s(1000.0) == gone.ready_in_s(2000.0) == 9
    starts.begin(["r6"], 2000.0)
    begun = starts.see([replica("r6", STARTING)], 2002.0)["s"]
    assert [begun.ready_in_s(at_s) for at_s in (2000, 2002, 2009, 2020)] == [9, 7, 0, 0]


def test_what_was_started_by_others_or_never_ready_is_no_measurement() -> None:
    starts = StartTimes()
    starts.see([replica("other", STARTING)], 0.0)
    assert starts.see([replica("other", READY)], 5.0)["s"].longest_s is None
    starts.begin(["r"], 10.0)
    starts.see([replica("r", ReplicaState.FAILED)], 12.0)
    assert starts.see([replica("r", READY)], 99.0)["s"].longest_s is None


def test_the_proxy_hears_of_sleepers_and_wakes_them(
    run: Callable[..., Running],  # noqa: F811
) -> None:
    running = run(document=system_json(rate=0, minNumReplicas=0))
    assert running.client.post("/invoke").status_code == 200
    assert running.actuator.replicas() == []
    told: dict[str, Any] = {"server": "s", "models": [], "ready_in_s": None}
    assert running.client.get("/sleepers").json == {"servers": [told]}
    assert running.client.post("/wake/s").json == told
    eventually(running.actuator.replicas, DEADLINE_S)
    running.at_s += 30
    running.actuator.settle()
    eventually(lambda: running.controller.ready_in_s("s") == 0, DEADLINE_S)
    assert 'hearth_cluster_start_seconds{server="s"} 30.0' in running.client.get("/metrics").text
    refused = running.client.post("/wake/other")
    assert (refused.status_code, (refused.json or {})["error"]["code"]) == (404, "unknown")
    assert "known: s" in (refused.json or {})["message"]
