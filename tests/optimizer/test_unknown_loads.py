"""Loads as monitoring gives them: means, gaps, and numbers that are none."""

import json
import math
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimizer.app import create_app
from optimizer.settings import Settings
from optimizer.spec import OptimizerSpec
from tests.optimizer.support import server, system_data

RUNS = {"accelerator": "A", "numReplicas": 3, "maxBatch": 16, "cost": 30}
UNUSABLE = [None, math.nan, math.inf, -math.inf, 1e300, 10**400, -1, -1.5]
LOAD_FIELDS = ["arrivalRate", "avgInTokens", "avgOutTokens"]
SOLVERS = [{}, {"unlimited": True}, {"milpSolver": True}, {"priceSolver": True}]


@pytest.fixture(scope="module")
def client() -> FlaskClient:
    return create_app(Settings()).test_client()


def _reject(constant: str) -> None:
    raise AssertionError(f"{constant} in an answer")


def solved(client: FlaskClient, servers: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """The answer, which is strict JSON."""
    response = client.post("/optimizeOne", data=json.dumps(system_data(servers, **options)))
    answer: dict[str, Any] = json.loads(response.text, parse_constant=_reject)
    assert response.status_code == 200, answer
    return answer


def shape(answer: dict[str, Any], name: str = "s") -> tuple[str, int]:
    allocation = answer["allocations"][name]
    return allocation["accelerator"], allocation["numReplicas"]


loads = st.dictionaries(st.sampled_from(LOAD_FIELDS), st.sampled_from(UNUSABLE), min_size=1)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(load=loads, flags=st.sampled_from(SOLVERS), rates=st.lists(st.integers(0, 500), max_size=3))
def test_a_load_that_cannot_be_used_holds_its_server_and_the_others_are_solved_around_it(
    client: FlaskClient, load: dict[str, Any], flags: dict[str, bool], rates: list[int]
) -> None:
    others = [server(f"t{number}", rate) for number, rate in enumerate(rates)]
    odd = _loaded(load, currentAlloc=RUNS)
    answer = solved(client, [odd, *others], capacity={"A": 10, "B": 10}, **flags)
    alone = solved(client, others, capacity={"A": 7, "B": 10}, **flags)
    assert shape(answer) == ("A", 3)
    assert (answer["allocations"]["s"]["cost"], answer["details"]["s"]["kept"]) == (30, True)
    assert set(answer["loadFaults"]) == {"s"}
    assert any(name in answer["loadFaults"]["s"] for name in load)
    assert "s" not in answer["changes"]
    for other in others:
        name = other["name"]
        assert answer["allocations"].get(name) == alone["allocations"].get(name)
        assert answer["unallocated"].get(name) == alone["unallocated"].get(name)


def _loaded(load: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A server with another load."""
    one = server(**fields)
    one["currentAlloc"]["load"] |= load
    return one


@pytest.mark.parametrize("current", [RUNS, RUNS | {"load": None}, RUNS | {"load": {}}])
def test_server_without_a_load_keeps_what_it_runs(
    client: FlaskClient, current: dict[str, Any]
) -> None:
    silent = {"name": "s", "class": "c", "model": "m", "currentAlloc": current}
    answer = solved(client, [silent])
    assert shape(answer) == ("A", 3)
    assert answer["loadFaults"] == {"s": "load: arrivalRate is not known; what runs stays"}


def test_a_server_of_several_accelerators_keeps_all_of_them(client: FlaskClient) -> None:
    parts = [RUNS, {"accelerator": "B", "numReplicas": 2, "cost": 34}]
    answer = solved(client, [server(rate=math.nan, currentAlloc=RUNS | {"parts": parts})])
    kept = answer["allocations"]["s"]["parts"]
    assert [(p["accelerator"], p["numReplicas"]) for p in kept] == [("A", 3), ("B", 2)]
    assert answer["summary"]["totalCost"] == 64


@pytest.mark.parametrize(
    ("bound", "replicas", "found"),
    [("maxNumReplicas", 2, 2), ("minNumReplicas", 5, 5), ("maxNumReplicas", 9, 3)],
)
def test_what_stays_keeps_within_its_bounds_of_replicas(
    client: FlaskClient, bound: str, replicas: int, found: int
) -> None:
    bounded = server(rate=math.nan, currentAlloc=RUNS) | {bound: replicas}
    answer = solved(client, [bounded])
    assert shape(answer) == ("A", found)


def test_what_is_neither_known_nor_priced_any_more_stays_at_its_own_cost(
    client: FlaskClient,
) -> None:
    gone = RUNS | {"accelerator": "gone", "itlAverage": math.nan}
    answer = solved(client, [server(rate=math.nan, currentAlloc=gone, model="unknown")])
    assert (shape(answer), answer["summary"]["totalCost"]) == (("gone", 3), 30)


def test_a_server_that_runs_nothing_is_planned_without_the_load_and_named(
    client: FlaskClient,
) -> None:
    answer = solved(client, [server(rate=math.nan), server("t", avgOutTokens=math.nan)])
    assert (shape(answer), shape(answer, "t")) == (("", 0), ("A", 1))
    assert answer["loadFaults"] == {
        "s": "load: arrivalRate is not known; planned as 0",
        "t": "load: avgOutTokens is not known; planned as 0",
    }


def test_a_load_of_zero_is_known_whatever_its_tokens_are(client: FlaskClient) -> None:
    """As 0 requests have: their mean is 0 / 0."""
    idle = server(rate=0, currentAlloc=RUNS, avgInTokens=math.nan, avgOutTokens=math.nan)
    answer = solved(client, [idle])
    assert (shape(answer), answer["loadFaults"]) == (("", 0), {})


SPEED_OF_ONE = {"maxBatchSize": 8, "decodeParms": {"alpha": 5}, "prefillParms": {"gamma": 9}}
HOW_MANY = {"model": "llama-3.1-8b", "arrivalRate": 60, "accelerators": ["h100"]}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tokens=st.floats(1, 4000), out=st.floats(1, 4000))
def test_mean_tokens_are_taken_as_the_nearest_whole_ones(
    client: FlaskClient, tokens: float, out: float
) -> None:
    means = {"avgInTokens": tokens, "avgOutTokens": out}
    whole = {name: round(value) for name, value in means.items()}
    by_mean, by_whole = (solved(client, [_loaded(load)]) for load in (means, whole))
    assert by_mean == by_whole
    for path, sweep in (("/analyze", SPEED_OF_ONE | {"arrivalRate": 60}), ("/size", SPEED_OF_ONE)):
        answer = client.post(path, json=sweep | means)
        assert answer.status_code == 200
        assert answer.get_json() == client.post(path, json=sweep | whole).get_json()


def test_how_many_takes_mean_tokens(client: FlaskClient) -> None:
    answer = client.post("/howmany", json=HOW_MANY | {"avgInTokens": 128.0, "avgOutTokens": 998.7})
    assert (answer.get_json()["avgInTokens"], answer.get_json()["avgOutTokens"]) == (128, 999)


def test_the_reference_s_reading_refuses_what_is_no_number_and_takes_nothing_for_zero() -> None:
    client = create_app(Settings(unknown_keys="ignore")).test_client()
    refused = client.post(
        "/optimizeOne", data=json.dumps(system_data([server(rate=math.nan, currentAlloc=RUNS)]))
    )
    assert refused.status_code == 400
    (fault,) = refused.get_json()["faults"]
    assert fault["path"] == "system.serverData.servers[0].currentAlloc.load.arrivalRate"
    answer = solved(client, [server(rate=None, currentAlloc=RUNS)])
    assert (shape(answer), answer["loadFaults"]) == (("", 0), {})


def test_what_if_says_which_loads_it_could_not_scale(client: FlaskClient) -> None:
    whole = system_data([server(rate=math.nan, currentAlloc=RUNS)])
    sweep = {"sweep": "load", "factors": [1, 5], **whole}
    rows = json.loads(client.post("/whatif", data=json.dumps(sweep)).text)["rows"]
    assert [row["servers"]["s"]["numReplicas"] for row in rows] == [3, 3]
    assert all("arrivalRate is not known" in row["loadFaults"]["s"] for row in rows)


def test_unknown_loads_stay_unknown_where_a_state_is_read_and_put_back(tmp_path: Any) -> None:
    kept = Settings(stateful=True, store_path=tmp_path / "o.db")
    client = create_app(kept).test_client()
    solved(client, [server(rate=math.nan, currentAlloc=RUNS)])
    state = client.get("/state").get_json()
    assert client.put("/state", json=state).get_json() == state
    again = create_app(kept).test_client()
    flags = OptimizerSpec().dump()
    assert shape(again.post("/optimize", json=flags).get_json()) == ("A", 3)


@pytest.mark.parametrize("is_stateful", [False, True])
def test_hold_minutes_without_a_state_are_said_to_do_nothing(
    tmp_path: Any, is_stateful: bool
) -> None:
    chosen = Settings(stateful=is_stateful, store_path=tmp_path / "o.db")
    client = create_app(chosen).test_client()
    found = solved(client, [server()], holdMinutes=10)["summary"]["notes"]
    assert any(note.startswith("holdMinutes did nothing") for note in found) is not is_stateful
    assert solved(client, [server()])["summary"]["notes"] == []
