"""What other servers of many models are blamed for does not happen here."""

from dataclasses import replace

from inference_api.bundle.members import Eviction, LoadMember, MemberState, Refuse, Unload
from tests.inference_api.bundle.simulated_bundle import NEEDS, POLICY, bundle, with_residents


def test_busy_member_does_not_starve_another() -> None:
    simulated = bundle("ab", replace(POLICY, fast_memory_limit_bytes=110))
    simulated.run_until_served(simulated.ask("a"))
    request = simulated.ask("b")
    while request.started_s is None:
        simulated.ask("a", run_s=3)  # a request to a at every turn
        simulated.turn()
    assert request.started_s - request.arrived_s <= POLICY.patience_s + 3 + 1 + 2
    assert simulated.num_evictions()[Eviction.PATIENCE] == 1


def test_two_busy_members_do_not_thrash() -> None:
    simulated = bundle("ab", replace(POLICY, fast_memory_limit_bytes=110))
    for turn in range(2000):
        if turn % 4 == 0:
            simulated.ask("a", run_s=0.5)
            simulated.ask("b", run_s=0.5)
        simulated.turn()
    elapsed_s, residence_s = 2000 * simulated.turn_s, 4.0
    assert len(simulated.names(LoadMember)) <= elapsed_s / (residence_s + 1)
    simulated.run(200)
    simulated.check_all_ended()


def test_member_that_can_never_fit_evicts_nobody() -> None:
    large = replace(NEEDS, weights_bytes=180)
    simulated = with_residents("ab", "abc", a=replace(NEEDS, is_pinned=True), c=large)
    request = simulated.ask("c")
    simulated.run(30)
    assert request.end == "fast_memory_limit leaves it 70 bytes less than it needs"
    assert [type(each) for each in simulated.effects] == [Refuse]


def test_fresh_member_is_not_evicted_before_its_request() -> None:
    simulated = bundle("ab", replace(POLICY, fast_memory_limit_bytes=110, user_rows=8))
    first = simulated.ask("a")
    simulated.turn()
    simulated.ask("b")
    simulated.run_until_served(first)
    assert simulated.names(LoadMember) == ["a"]


def test_request_that_comes_while_its_member_is_unloaded_is_not_lost() -> None:
    simulated = with_residents("ab")
    simulated.unload_s = 1
    simulated.ask("c")
    simulated.turn()
    assert simulated.names(Unload) == ["a"]
    request = simulated.ask("a")
    simulated.turn()
    assert simulated.state("a") is MemberState.DRAINING
    simulated.run_until_served(request)


def test_bytes_count_and_not_the_number_of_members() -> None:
    tiny = replace(NEEDS, weights_bytes=10)
    simulated = with_residents("abcdefgh", "abcdefgh", POLICY, **dict.fromkeys("abcdefgh", tiny))
    assert simulated.residency.snapshot().used_bytes == 8 * 20
    assert not simulated.names(Unload)


def test_reads_are_not_use() -> None:
    simulated = with_residents("ab")
    before = simulated.residency.snapshot().members["a"].last_used_s
    for _ in range(5):
        simulated.turn()
        simulated.residency.snapshot()
        simulated.residency.order()
        simulated.residency.switch_of("a", simulated.now_s)
        simulated.residency.ask_load("a", simulated.now_s)
    assert simulated.residency.snapshot().members["a"].last_used_s == before
    simulated.ask("c")
    simulated.turn()
    assert simulated.names(Unload) == ["a"]


def test_residents_are_served_while_another_is_loaded() -> None:
    simulated = with_residents("a")
    simulated.load_s["b"] = 50
    simulated.ask("b")
    simulated.turn()
    requests = [simulated.ask("a") for _ in range(5)]
    simulated.turn()
    assert all(each in simulated.running for each in requests)
    assert simulated.state("b") is MemberState.LOADING


def test_nobody_waits_longer_for_an_operators_load_than_for_a_request() -> None:
    simulated = with_residents("ab")
    simulated.ask("a", run_s=1000)
    simulated.ask("b", run_s=5)
    simulated.turn()
    simulated.residency.ask_load("c", simulated.now_s)
    simulated.run(8)
    assert simulated.state("c") is MemberState.RESIDENT
    assert simulated.names(Unload) == ["b"]


def test_memory_is_as_before_after_many_loads() -> None:
    simulated = bundle("abc", replace(POLICY, fast_memory_limit_bytes=110))
    for name in "abc" * 10:
        simulated.run_until_served(simulated.ask(name))
        simulated.run(1)
    simulated.run(10)
    assert simulated.residency.snapshot().used_bytes == 100


def test_members_that_are_all_resident_cost_a_turn_nothing() -> None:
    simulated = with_residents("ab")
    for _ in range(20):
        simulated.ask("a")
    assert simulated.residency.advance(simulated.now_s, simulated.waiting()) == ()
