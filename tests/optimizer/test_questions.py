"""Explanations, plans, what-if sweeps, questions about one replica, stabilisation."""

from dataclasses import replace
from typing import Any

import pytest

from optimizer.candidates.replicas import SizingCache
from optimizer.errors import InvalidRequest, NotFound
from optimizer.inferno_json import read
from optimizer.optimize import SolveOptions, optimize
from optimizer.questions.explain import explain
from optimizer.questions.plan import plan
from optimizer.questions.prediction import analyze
from optimizer.questions.queries import AnalyzeQuery, SizeQuery, size
from optimizer.questions.whatif import WhatIfQuery, what_if
from optimizer.spec import AllocationData, ServiceClassSpec
from optimizer.stabilize import Stability
from optimizer.system import System
from tests.optimizer.support import SPEED, perf, server, system, target

OPTIONS = SolveOptions(SizingCache())


def test_explanation_names_the_bound_of_every_accelerator_and_by_how_much() -> None:
    slow = perf("B", decodeParms={"alpha": 20, "beta": 0.3})
    answer: Any = explain(system([server()], perfs=[perf("A"), slow]), "s", SizingCache())
    good, bad = answer["candidates"]
    assert (good["accelerator"], good["feasible"], good["numReplicas"]) == ("A", True, 2)
    assert min(good["maxRateFor"].values()) == pytest.approx(98.87, abs=0.1)
    assert not bad["feasible"]
    assert bad["reason"]["code"] == "itl"
    assert bad["reason"]["bound"] == 14
    assert bad["reason"]["overBy"] == pytest.approx(0.45, abs=0.01)


def test_explanation_says_why_an_accelerator_was_not_tried() -> None:
    one = server(keepAccelerator=True, currentAlloc={"accelerator": "B", "numReplicas": 1})
    answer = explain(system([one]), "s", SizingCache())
    assert [c["reason"] and c["reason"]["code"] for c in answer["candidates"]] == ["keep", None]
    bare = explain(system([server()], perfs=[perf("A")]), "s", SizingCache())
    assert [c["reason"] and c["reason"]["code"] for c in bare["candidates"]] == [None, "perf"]


def test_explanation_of_refused_and_of_idle_servers() -> None:
    refused: Any = explain(system([server(model="zz")]), "s", SizingCache())
    assert refused["refused"]["message"] == "model zz is not known"
    idle = explain(system([server(rate=0)]), "s", SizingCache())
    assert idle["scaleToZero"]
    with pytest.raises(NotFound, match="server zz not found"):
        explain(system([]), "zz", SizingCache())


def test_explanation_names_the_cards_that_ran_out() -> None:
    first = server("first", desiredAlloc=at("A", 2))
    second = server("second", desiredAlloc=at("B", 2))
    answer = explain(system([first, second], capacity={"A": 3, "B": 4}), "second", SizingCache())
    lacking, enough = answer["candidates"]
    assert lacking["feasible"]
    assert lacking["shortage"] == {
        "type": "A", "needed": 2, "left": 1, "count": 3,
        "message": "not enough cards left: it needs 2 of type A, the other servers leave 1 of 3",
    }  # fmt: skip
    assert enough["shortage"] is None
    alone: Any = explain(system([first], capacity={"B": 4}), "first", SizingCache())
    assert alone["candidates"][0]["shortage"]["message"].endswith("of type A, there are 0")
    unlimited = system([first, second], capacity={}, unlimited=True)
    answer = explain(unlimited, "second", SizingCache())
    assert [candidate["shortage"] for candidate in answer["candidates"]] == [None, None]


def at(accelerator: str, replicas: int) -> dict[str, Any]:
    return {"accelerator": accelerator, "numReplicas": replicas}


def steps(one: System, *allocated: str) -> list[tuple[str, str, str, int, int]]:
    answer = plan(one, frozenset(allocated))
    return [
        (s["action"], s["server"], s["accelerator"], s["from"], s["to"]) for s in answer["steps"]
    ]


def test_plan_starts_the_new_before_it_stops_the_old() -> None:
    one = server("s", currentAlloc=at("A", 3), desiredAlloc=at("B", 2))
    assert steps(system([one], capacity={"A": 3, "B": 4})) == [
        ("scale-up", "s", "B", 0, 2),
        ("scale-down", "s", "A", 3, 0),
    ]


def test_plan_frees_cards_for_another_server_before_using_them() -> None:
    shrinking = server("x", currentAlloc=at("A", 5), desiredAlloc=at("A", 2))
    growing = server("y", currentAlloc=at("A", 1), desiredAlloc=at("A", 4))
    assert steps(system([shrinking, growing], capacity={"A": 7})) == [
        ("scale-up", "y", "A", 1, 2),
        ("scale-down", "x", "A", 5, 2),
        ("scale-up", "y", "A", 2, 4),
    ]


def test_plan_marks_a_swap_without_spare_cards_as_disruptive_and_ends() -> None:
    a = server("a", currentAlloc=at("A", 2), desiredAlloc=at("B", 1))
    b = server("b", currentAlloc=at("B", 1), desiredAlloc=at("A", 2))
    answer = plan(system([a, b], capacity={"A": 2, "B": 2}), frozenset())
    assert answer["disruptive"] == 1
    assert answer["blocked"] == 0
    assert [s["action"] for s in answer["steps"]].count("scale-up") == 2


def test_plan_reports_what_never_fits() -> None:
    one = server(currentAlloc=at("A", 1), desiredAlloc=at("A", 9))
    answer = plan(system([one], capacity={"A": 4}), frozenset())
    assert [s["action"] for s in answer["steps"]] == ["scale-up", "blocked"]
    assert answer["blocked"] == 1


def test_plan_knows_the_class_of_servers_that_name_none() -> None:
    last, first = (
        server(name, desiredAlloc=at("A", 1)) | {"class": of}
        for name, of in (("a", "low"), ("z", ""))
    )
    one = system([last, first], capacity={"A": 1})
    one = one.with_classes([ServiceClassSpec(name="Free", priority=1)])
    assert steps(one) == [("scale-up", "z", "A", 0, 1), ("blocked", "a", "A", 0, 1)]


def test_plan_scales_to_zero_only_what_was_allocated_so() -> None:
    one = system([server(rate=0, currentAlloc={**at("A", 2), "cost": 20})])
    assert steps(one) == []
    assert steps(one, "s") == [("scale-down", "s", "A", 2, 0)]
    assert plan(one, frozenset({"s"}))["costDifference"] == -20


def test_plan_never_uses_more_cards_than_there_are() -> None:
    servers = [
        server(f"s{i}", currentAlloc=at("AB"[i % 2], 1 + i % 3),
               desiredAlloc=at("BA"[i % 2], 1 + (i + 1) % 3))
        for i in range(12)
    ]  # fmt: skip
    one = system(servers, capacity={"A": 13, "B": 26})
    used = {"A": sum(1 + i % 3 for i in range(0, 12, 2)),
            "B": 2 * sum(1 + i % 3 for i in range(1, 12, 2))}  # fmt: skip
    for step in plan(one, frozenset())["steps"]:
        if step["action"] != "blocked":
            used[step["cards"]["type"]] += step["cards"]["count"]
        assert used["A"] <= 13
        assert used["B"] <= 26


def test_what_if_sweeps_load_prices_and_cards() -> None:
    one = system([server("s"), server("t")])

    def rows(**query: Any) -> list[Any]:
        return list(what_if(read(WhatIfQuery, query), one, OPTIONS)["rows"])

    load = rows(sweep="load", factors=[0, 1, 4])
    assert [row["totalCost"] for row in load] == [0, 40, 100]
    one_server = rows(sweep="load", factors=[2], target="s")[0]["servers"]
    assert one_server["s"]["numReplicas"] > one_server["t"]["numReplicas"]
    assert rows(sweep="cost", factors=[3], target="A")[0]["servers"]["s"]["accelerator"] == "B"
    cards = rows(sweep="capacity", factors=[0, 0.2])
    assert [row["allocated"] for row in cards] == [0, 1]


def test_what_if_leaves_the_system_alone_and_checks_its_question() -> None:
    one = system([server()])
    before = one.to_spec()
    what_if(read(WhatIfQuery, {"sweep": "load", "factors": [5]}), one, OPTIONS)
    assert one.to_spec() == before
    with pytest.raises(NotFound, match="server zz"):
        what_if(read(WhatIfQuery, {"sweep": "load", "factors": [1], "target": "zz"}), one, OPTIONS)
    for wrong in (
        {},
        {"sweep": "moon", "factors": [1]},
        {"sweep": "load", "factors": []},
        {"sweep": "load", "factors": [-1]},
        {"sweep": "load", "factors": [1] * 51},
    ):
        with pytest.raises(InvalidRequest):
            read(WhatIfQuery, wrong)  # fmt: skip


SHAPE = {"maxBatchSize": 16, "avgInTokens": 128, "avgOutTokens": 512}


def test_size_and_analyze_agree_about_one_replica() -> None:
    wanted = {**SPEED, **SHAPE, "slo-itl": 14, "slo-ttft": 500}
    sized: Any = size(read(SizeQuery, wanted), system([]))
    assert sized["feasible"]
    assert sized["arrivalRate"] == min(sized["maxRateFor"].values())
    query = read(AnalyzeQuery, {**SPEED, **SHAPE, "arrivalRate": sized["arrivalRate"]})
    found = analyze(query, system([]))
    assert found["ttftAverage"] == pytest.approx(500, rel=1e-4)
    assert found["itlAverage"] == sized["itlAverage"] < 14
    assert not found["saturated"]


def test_targets_out_of_reach_are_an_answer() -> None:
    sized = size(read(SizeQuery, {**SPEED, **SHAPE, "slo-itl": 5}), system([]))
    assert not sized["feasible"]
    assert sized["maxRateFor"]["slo-itl"] == 0
    assert sized["idle"]["itlAverage"] == pytest.approx(10.3, abs=0.01)


def test_overload_of_a_replica_is_told() -> None:
    query = read(AnalyzeQuery, {**SPEED, **SHAPE, "arrivalRate": 1e6})
    found = analyze(query, system([]))
    assert found["saturated"]
    assert found["dropFraction"] > 0.99


def test_replica_may_be_named_by_model_and_accelerator() -> None:
    query = read(AnalyzeQuery, {"model": "m", "acc": "A", "avgInTokens": 128, "avgOutTokens": 512,
                                "arrivalRate": 60})  # fmt: skip
    assert analyze(query, system([]))["itlAverage"] == pytest.approx(12.174419, rel=1e-5)
    with pytest.raises(NotFound, match="model zz"):
        analyze(query.model_copy(update={"model": "zz"}), system([]))


@pytest.mark.parametrize(
    "wrong",
    [{}, {"arrivalRate": 0}, {"arrivalRate": 1}, {"arrivalRate": 1, "maxBatchSize": 1}],
)
def test_questions_without_an_answer_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        analyze(read(AnalyzeQuery, wrong), system([]))


def stable(one: System, stability: Stability, **flags: Any) -> tuple[AllocationData, bool]:
    flagged = replace(one, optimizer=one.optimizer.model_copy(update=flags))
    answer = optimize(flagged, OPTIONS, stability)
    return answer.desired()["s"], answer.allocations["s"].is_kept


def running(replicas: int, accelerator: str = "A", rate: float = 120, **fields: Any) -> System:
    current = {**at(accelerator, replicas), "cost": 10.0 * replicas}
    return system([server(rate=rate, currentAlloc=current, **fields)], unlimited=True)


def test_small_gains_leave_a_server_alone() -> None:
    eleven = running(11, rate=900)
    assert stable(eleven, Stability())[0].num_replicas == 10
    data, kept = stable(eleven, Stability(min_gain_percent=10))
    assert (data.num_replicas, data.cost, kept) == (11, 110, True)
    assert data.itl_average < 13.4
    assert stable(eleven, Stability(min_gain_percent=10), min_gain_percent=5.0)[1] is False


def test_large_gains_and_missed_targets_move_at_once() -> None:
    assert stable(running(20), Stability(min_gain_percent=10))[0].num_replicas == 2
    few = stable(running(1), Stability(min_gain_percent=50, hold_minutes=60, now_s=10))
    assert (few[0].num_replicas, few[1]) == (2, False)


def test_recent_change_holds_a_server_even_against_scaling_to_zero() -> None:
    idle = running(3, rate=0)
    recent = Stability(now_s=1000, changed_at_s={"s": 900}, hold_minutes=5)
    assert stable(idle, recent)[0].num_replicas == 3
    later = Stability(now_s=1300, changed_at_s={"s": 900}, hold_minutes=5)
    assert stable(idle, later)[0].num_replicas == 0
    assert stable(idle, Stability(now_s=1000, hold_minutes=5))[0].num_replicas == 0


def test_server_is_not_kept_where_its_cards_are_needed_or_its_bound_is_lower() -> None:
    scarce = running(11, rate=900)
    scarce = replace(
        scarce, capacities={"A": 10},
        optimizer=scarce.optimizer.model_copy(update={"unlimited": False}),
    )  # fmt: skip
    assert stable(scarce, Stability(min_gain_percent=50))[0].num_replicas == 10
    bounded = running(11, rate=900, maxNumReplicas=10)
    assert stable(bounded, Stability(min_gain_percent=50))[0].num_replicas == 10


def test_targets_without_bounds_are_served_to_saturation() -> None:
    one = system([server()], targets=target(), unlimited=True)
    assert stable(one, Stability())[0].num_replicas == 1
