"""Candidates, and the answers to what the reference gets wrong."""

from typing import Any

import pytest

from optimizer.answer import Answer
from optimizer.candidates import pairs
from optimizer.candidates.replicas import SizingCache
from optimizer.errors import InvalidRequest
from optimizer.inferno_json import read
from optimizer.optimize import SolveOptions, optimize
from optimizer.spec import AcceleratorSpec, PowerSpec
from optimizer.system import System
from tests.optimizer.support import perf, server, system, target


def solve(one: System) -> Answer:
    return optimize(one, SolveOptions(SizingCache()))


def chosen(answer: Answer, name: str = "s") -> tuple[str, int]:
    data = answer.desired()[name]
    return data.accelerator, data.num_replicas


def test_more_pairs_than_may_be_sized_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "MAX_PAIRS", 5)
    two_each = [server(str(number), rate=number) for number in range(3)]
    assert len(solve(system(two_each[:2])).allocations) == 2
    with pytest.raises(InvalidRequest, match="6 pairs of a server and"):
        solve(system(two_each))
    unknown = server("x", model="unknown")
    assert "x" in solve(system([*two_each[:2], unknown])).unallocated


def test_throughput_target_does_not_hide_arrivals() -> None:
    """3000 tokens/s are 5.9 requests/s; 150/s arrive."""
    answer = solve(system([server(rate=9000)], targets=target(slo_tps=3000), unlimited=True))
    assert chosen(answer) == ("A", 80)
    few = solve(system([server(rate=1)], targets=target(slo_tps=3000), unlimited=True))
    assert chosen(few) == ("A", 4)


def test_arrivals_without_output_tokens_are_work() -> None:
    answer = solve(system([server(avgOutTokens=0)], targets=target(slo_ttft=500), unlimited=True))
    assert chosen(answer) == ("A", 1)
    assert answer.allocations["s"].details()["utilization"] > 0


@pytest.mark.parametrize("flags", [{"unlimited": True}, {}, {"milpSolver": True}])
def test_scale_to_zero_is_an_explicit_allocation_with_every_solver(flags: dict[str, bool]) -> None:
    answer = solve(system([server(rate=0), server("t")], **flags))
    assert chosen(answer) == ("", 0)
    assert chosen(answer, "t") == ("A", 2)
    assert answer.unallocated == {}


def test_idle_server_keeps_its_minimum_of_replicas() -> None:
    answer = solve(system([server(rate=0, minNumReplicas=3)]))
    data = answer.desired()["s"]
    assert (data.accelerator, data.num_replicas, data.max_batch) == ("A", 3, 16)
    assert (data.itl_average, data.ttft_average, data.cost) == (10.3, 20.01, 30)


def test_minimum_of_replicas_is_kept_under_load() -> None:
    assert chosen(solve(system([server(minNumReplicas=5)]))) == ("A", 5)


def test_beyond_max_replicas_the_maximum_is_offered_as_saturated() -> None:
    answer = solve(system([server(rate=1000, maxNumReplicas=2)], unlimited=True))
    details = answer.allocations["s"].details()
    assert chosen(answer) == ("A", 2)
    assert details["saturated"]
    assert details["bestEffort"]
    assert details["dropFraction"] > 0.5
    assert answer.desired()["s"].ttft_average > 500


def test_max_replicas_prefers_an_accelerator_that_suffices() -> None:
    fast = perf("B", decodeParms={"alpha": 2, "beta": 0.05})
    answer = solve(
        system([server(rate=400, maxNumReplicas=2)], perfs=[perf("A"), fast], unlimited=True)
    )
    assert chosen(answer)[0] == "B"
    assert not answer.allocations["s"].is_saturated


def test_best_effort_reports_the_latencies_of_its_own_replicas() -> None:
    """The reference shows those of the full allocation: 460 ms here."""
    answer = solve(system([server(rate=5000)], capacity={"A": 5}, saturationPolicy="RoundRobin"))
    details = answer.allocations["s"].details()
    assert chosen(answer) == ("A", 5)
    assert answer.desired()["s"].ttft_average > 10_000
    assert details["saturated"]
    assert details["throughputRPM"] < 5000 * (1 - details["dropFraction"]) + 1


def test_multiplicity_left_out_is_one_card() -> None:
    assert read(AcceleratorSpec, {"name": "x"}).multiplicity == 1
    assert read(AcceleratorSpec, {"name": "x", "multiplicity": 0}).multiplicity == 1


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (server(model="zz"), "model zz is not known"),
        (server() | {"class": "zz"}, "service class zz is not known"),
        (server() | {"class": ""}, "service class Free is not known"),
        (server(rate=-1), "arrivalRate is -1"),
        (server(avgInTokens=-5), "avgInTokens is -5"),
        (
            server(keepAccelerator=True, currentAlloc={"accelerator": "Z"}),
            "accelerator Z, which it must keep",
        ),
        (server(rate=1e15), "replicas needed"),
    ],
)
def test_server_without_candidates_does_not_fail_the_others(
    one: dict[str, Any], reason: str
) -> None:
    answer = solve(system([one, server("t")], unlimited=True))
    assert answer.allocations.keys() == {"t"}
    if reason == "replicas needed":
        assert "replicas: " in answer.unallocated["s"]
    else:
        assert reason in answer.unallocated["s"]


def test_missed_target_is_named_with_the_excess() -> None:
    answer = solve(system([server()], targets=target(slo_itl=10), unlimited=True))
    assert answer.unallocated["s"].startswith("ITL: an idle replica takes 10.3")
    assert "over the target of 10 ms (on A)" in answer.unallocated["s"]


@pytest.mark.parametrize(
    "speed",
    [
        {"decodeParms": {"alpha": 0, "beta": 0}, "prefillParms": {"gamma": 0, "delta": 0}},
        {"decodeParms": None, "prefillParms": None},
    ],
)
def test_no_service_time_is_no_candidate_instead_of_an_endless_loop(speed: dict[str, Any]) -> None:
    answer = solve(system([server()], perfs=[perf("A", **speed)], unlimited=True))
    assert "service time of 0" in answer.unallocated["s"]


def test_prefill_only_requests_without_input_take_no_time_and_are_refused() -> None:
    answer = solve(system([server(avgInTokens=0, avgOutTokens=1)], unlimited=True))
    assert "service time of 0" in answer.unallocated["s"]


def test_later_duplicates_replace_earlier_ones() -> None:
    assert chosen(solve(system([server(rate=10), server(rate=2000)], unlimited=True))) == ("A", 21)


def test_card_type_without_capacity_has_no_cards() -> None:
    answer = solve(system([server()], capacity={"B": 10}))
    assert chosen(answer) == ("B", 2)
    assert [(u["type"], u["count"], u["limit"]) for u in answer.card_use] == [("B", 4, 10)]


def test_cplex_is_answered_by_highs_and_said_so() -> None:
    answer = solve(system([server()], milpSolver=True, useCplex=True))
    assert chosen(answer) == ("A", 2)
    assert "CPLEX is not available" in answer.notes[0]


def test_power_follows_two_lines_and_counts_every_unit() -> None:
    power = PowerSpec(idle=100, full=400, mid_power=300, mid_util=0.5)
    assert [power.watts(u) for u in (0, 0.25, 0.5, 0.75, 1)] == [100, 200, 300, 350, 400]
    flat = PowerSpec(idle=100, full=400, mid_power=400, mid_util=0)
    assert [flat.watts(u) for u in (0, 1)] == [400, 400]
    assert PowerSpec(idle=100, full=400, mid_power=300, mid_util=1).watts(1) == 300
    allocation = solve(system([server()], perfs=[perf("A", accCount=3)])).allocations["s"]
    utilization = allocation.parts[0].candidate.utilization
    expected = 3 * allocation.replicas * power.watts(utilization)
    assert allocation.details()["powerWatts"] == pytest.approx(expected, rel=1e-6)


def test_perf_parms_of_the_newer_reference_are_taken() -> None:
    newer = {"name": "m", "acc": "A", "accCount": 1, "maxBatchSize": 64, "atTokens": 512,
             "perfParms": {"alpha": 20.58, "beta": 0.041, "gamma": 0.00128125}}  # fmt: skip
    answer = solve(
        system([server()], perfs=[newer], targets=target(slo_itl=80, slo_ttft=2000), unlimited=True)
    )
    data = answer.desired()["s"]
    assert data.max_batch == 64
    assert 20.58 < data.itl_average < 80


def test_heterogeneous_allocation_is_whole_and_shows_its_largest_part() -> None:
    answer = solve(
        system([server(rate=900)], capacity={"A": 3, "B": 200}, milpSolver=True, heterogeneous=True)
    )
    data = answer.desired()["s"].dump()
    parts = [(part["accelerator"], part["numReplicas"]) for part in data["parts"]]
    assert parts == [("B", 7), ("A", 3)]
    assert (data["accelerator"], data["numReplicas"]) == ("B", 7)
    assert answer.total_cost == 149
    assert all(part["itlAverage"] <= 14 and part["ttftAverage"] <= 500 for part in data["parts"])


def test_sizings_are_computed_once_per_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    from optimizer.candidates.replicas import ReplicaTable

    computed = []
    sizes = ReplicaTable.size

    def counted(table: ReplicaTable) -> Any:
        computed.append(len(table))
        return sizes(table)

    monkeypatch.setattr(ReplicaTable, "size", counted)
    one = system([server(f"s{i}", rate=i + 1) for i in range(50)], unlimited=True)
    options = SolveOptions(SizingCache())
    for _ in range(3):
        optimize(one, options)
    assert computed == [1]
