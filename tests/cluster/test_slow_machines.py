"""Machines so slow that no number of replicas meets the service levels: plans go on."""

from typing import Any

import pytest

from tests.cluster.fleet import system_json
from tests.cluster.test_cycle import World, settled

LOW, HIGH = 300, 1500
ITL_MS = {"alone": 10.5, "level": 11.5}  # of one request on the document's machine; in its class


def slow_world(url: str, *, other_rows: bool = False, **keys: Any) -> World:
    """Its machine takes a fifth longer than in the document, which has learned that. `other_rows`:
    the document gives the server no rows of its own."""
    document = system_json(rate=LOW, minNumReplicas=0, maxBatchSize=0 if other_rows else 16)
    system = document["system"]
    del system["modelData"]["models"][1]  # the fast accelerator
    target = {"model": "m", "slo-ttft": 500, "slo-itl": ITL_MS["level"]}
    system["serviceClassData"]["serviceClasses"][0]["modelTargets"] = [target]
    world = World(url, document, **keys)
    for _ in range(6):
        cycle = world.period(LOW, ttft_ms=60, itl_ms=1.2 * ITL_MS["level"])
    assert cycle.learned.factors["m", "A"].decode * ITL_MS["alone"] > ITL_MS["level"]
    return world


@pytest.mark.parametrize("other_rows", [False, True])
def test_replicas_follow_a_load_that_no_number_of_them_serves_in_time(
    optimizer_url: str, other_rows: bool
) -> None:
    world = slow_world(optimizer_url, other_rows=other_rows)
    before = world.replicas
    for _ in range(4):
        told = world.period(HIGH, ttft_ms=60, itl_ms=1.2 * ITL_MS["level"]).servers["s"]
        assert told.held == "" or "changed" in told.held
    assert world.replicas > before
    assert told.planned.itl_ms is not None
    assert told.planned.itl_ms > ITL_MS["level"], "what to expect is told as it is"


def test_a_server_has_no_fewer_replicas_until_its_levels_can_be_met(optimizer_url: str) -> None:
    world = slow_world(optimizer_url, scale_down_s=0)
    for _ in range(4):
        world.period(HIGH, ttft_ms=60, itl_ms=1.2 * ITL_MS["level"])
    most = world.replicas
    for _ in range(4):
        world.period(10, ttft_ms=60, itl_ms=1.2 * ITL_MS["level"])
    assert world.replicas == most
    for _ in range(8):
        world.period(10, ttft_ms=30, itl_ms=ITL_MS["alone"])
    assert world.replicas < most


def test_a_server_that_was_slow_when_it_fell_asleep_is_woken(optimizer_url: str) -> None:
    world = slow_world(optimizer_url)
    assert settled(world, 0, periods=10) == 0
    assert world.planner.wake(["s"], world.at_s)
    assert settled(world, 0, periods=1) == 1


@pytest.mark.parametrize("level", [("slo-itl", 9.0), ("slo-itl", 0.1), ("slo-ttft", 1.0)])
def test_replicas_follow_a_load_by_best_effort_where_no_machine_meets_the_levels(
    optimizer_url: str, level: tuple[str, float]
) -> None:
    document = system_json(rate=LOW, maxBatchSize=16)
    target = {"model": "m", "slo-ttft": 500, "slo-itl": 200} | dict([level])
    document["system"]["serviceClassData"]["serviceClasses"][0]["modelTargets"] = [target]
    del document["system"]["modelData"]["models"][1]  # the fast accelerator
    world = World(optimizer_url, document, scale_down_s=0, stabilization_s=0, tune=False)
    planned = []
    for load in (LOW, 2 * LOW, 4 * LOW, 8 * LOW, LOW):
        for _ in range(3):
            told = world.period(load).servers["s"]
            assert told.held == ""
            assert f"over the target of {level[1]:g} ms" in told.unmet
        planned.append(world.replicas)
    assert planned[:4] == sorted(planned[:4])
    assert planned[3] > planned[0] == planned[4]


def test_levels_that_are_a_mistake_are_refused(optimizer_url: str) -> None:
    world = slow_world(optimizer_url)
    parts = world.system.parts["serviceClassData"]["serviceClasses"][0]
    parts["modelTargets"][0]["slo-itl"] = 0.001
    assert "ITL" in world.period(LOW).servers["s"].held
