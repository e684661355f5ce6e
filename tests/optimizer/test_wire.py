"""What bodies may hold: known keys, in any case; and whatever our own GET routes answer."""

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from common.stores import Record
from optimizer import inferno_json
from optimizer.app import create_app
from optimizer.settings import Settings
from optimizer.state import from_records
from tests.optimizer.support import perf, server, system_data


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    """With a solved system."""
    client = client_of(tmp_path)
    busy = server("busy", 200, currentAlloc={"accelerator": "B", "numReplicas": 1})
    data = system_data([server(), busy], milpSolver=True, heterogeneous=True)
    client.post("/optimizeOne", json=data)
    return client


def client_of(tmp_path: Path, **settings: Any) -> FlaskClient:
    chosen = Settings(stateful=True, store_path=tmp_path / "o.db", **settings)
    return create_app(chosen).test_client()


def faults(client: FlaskClient, verb: str, path: str, body: Any) -> dict[str, str]:
    response = client.open(path, method=verb, json=body)
    assert response.status_code == 400, response.text
    return {fault["path"]: fault["message"] for fault in response.get_json()["faults"]}


LOAD = {"arivalRate": 60, "avgInTokens": 128, "avgOutTokens": 512}
MISSPELT: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("POST", "/addServer", {"name": "s", "currentAlloc": {"load": LOAD}},
     "currentAlloc.load.arivalRate", "arrivalRate"),
    ("POST", "/setServers", {"servers": [{"name": "s", "minReplicas": 1}]},
     "servers[0].minReplicas", "minNumReplicas"),
    ("POST", "/setServers",
     {"servers": [{"name": "s", "desiredAlloc": {"parts": [{"replicas": 1}]}}]},
     "servers[0].desiredAlloc.parts[0].replicas", "numReplicas"),
    ("POST", "/setAccelerators", {"accelerator": []}, "accelerator", "accelerators"),
    ("POST", "/addAccelerator", {"name": "A", "power": {"idel": 1}}, "power.idel", "idle"),
    ("POST", "/setCapacities", {"counts": []}, "counts", "count"),
    ("POST", "/setCapacity", {"type": "A", "cout": 3}, "cout", "count"),
    ("POST", "/setModels", {"models": [perf("A", decodeParams={})]},
     "models[0].decodeParams", "decodeParms"),
    ("POST", "/addModelAcceleratorPerf", perf("A", acccount=1, atToken=1), "atToken", "atTokens"),
    ("POST", "/setServiceClasses", {"serviceClass": []}, "serviceClass", "serviceClasses"),
    ("POST", "/addServiceClassModelTargets",
     {"name": "c", "priority": 1, "modelTargets": [{"model": "m", "slo_ttf": 9}]},
     "modelTargets[0].slo_ttf", "slo-ttft"),
    ("POST", "/optimize", {"unlimitd": True}, "unlimitd", "unlimited"),
    ("POST", "/optimize", {"optimizer": {"solver": True}}, "optimizer.solver", "milpSolver"),
    ("POST", "/optimizeOne", {"system": {"serversData": {}}}, "system.serversData", "serverData"),
    ("POST", "/analyze", {"arrivalrates": 60}, "arrivalrates", "arrivalRate"),
    ("POST", "/size", {"slo-tftt": 60}, "slo-tftt", "slo-ttft"),
    ("POST", "/whatif", {"sweep": "load", "factor": [1]}, "factor", "factors"),
    ("POST", "/howmany", {"model": "m", "arrivalRate": 1, "maxCard": 1}, "maxCard", "maxCards"),
    ("PUT", "/state", {"system": {}, "changeAt": {}}, "changeAt", "changedAt"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "path", "body", "at", "near"), MISSPELT)
def test_misspelt_key_is_refused_with_its_place_and_the_nearest_known_one(
    client: FlaskClient, verb: str, path: str, body: dict[str, Any], at: str, near: str
) -> None:
    before = client.get("/state").get_json()
    listed = faults(client, verb, path, body)
    assert listed[at] == f"is not known (did you mean {near}?); correct it or leave it out"
    assert client.get("/state").get_json() == before


def test_key_like_no_other_is_refused_with_those_that_are_known(client: FlaskClient) -> None:
    listed = faults(client, "POST", "/setCapacity", {"type": "A", "junk": 1})
    assert listed == {"junk": "is not known; leave it out; known keys: type, count"}


@pytest.mark.parametrize(("verb", "path"), [("POST", "/optimizeOne"), ("PUT", "/state")])
@pytest.mark.parametrize("body", [{}, {"system": None}, "bare", {"accelerators": []}])
def test_body_without_a_system_leaves_the_state_as_it_is(
    client: FlaskClient, verb: str, path: str, body: Any
) -> None:
    before = client.get("/state").get_json()
    given = system_data([server()])["system"] if body == "bare" else body
    assert "system" in faults(client, verb, path, given)
    assert client.get("/state").get_json() == before


def test_setting_has_unknown_keys_ignored_as_the_reference_does(tmp_path: Path) -> None:
    client = client_of(tmp_path, unknown_keys="ignore")
    body = {"name": "s", "model": "m", "junk": 1, "currentAlloc": {"load": LOAD}}
    assert client.post("/addServer", json=body).status_code == 200
    load = client.get("/getServer/s").get_json()["currentAlloc"]["load"]
    assert load == {"arrivalRate": 0, "avgInTokens": 128, "avgOutTokens": 512}


def test_keys_of_the_newer_reference_are_taken_and_kept(client: FlaskClient) -> None:
    alloc = {"avgConcurrency": 3.5, "load": {"arrivalRate": 60, "throughput": 59.5}}
    client.post("/addServer", json={"name": "new", "maxQueueSize": 8, "currentAlloc": alloc})
    kept = client.get("/getServer/new").get_json()["currentAlloc"]
    assert (kept["avgConcurrency"], kept["load"]["throughput"]) == (3.5, 59.5)


ROUND_TRIPS = [
    ("/getAccelerators", "POST", "/setAccelerators"),
    ("/getAccelerator/A", "POST", "/addAccelerator"),
    ("/getCapacities", "POST", "/setCapacities"),
    ("/getCapacity/A", "POST", "/setCapacity"),
    ("/getModel/m", "POST", "/setModels"),
    ("/getModelAcceleratorPerf/m/A", "POST", "/addModelAcceleratorPerf"),
    ("/getServiceClasses", "POST", "/setServiceClasses"),
    ("/getServiceClass/c", "POST", "/addServiceClassModelTargets"),
    ("/getServers", "POST", "/setServers"),
    ("/getServer/busy", "POST", "/addServer"),
    ("/state", "PUT", "/state"),
]


@pytest.mark.parametrize(("read", "verb", "write"), ROUND_TRIPS)
def test_what_is_read_is_taken_back_and_changes_nothing(
    client: FlaskClient, read: str, verb: str, write: str
) -> None:
    shown, state = client.get(read).get_json(), client.get("/state").get_json()["system"]
    response = client.open(write, method=verb, json=shown)
    assert (response.status_code, response.get_json()) == (200, shown)
    assert client.get("/state").get_json()["system"] == state


def test_allocations_that_were_answered_are_taken_as_what_runs(client: FlaskClient) -> None:
    answered = client.post("/optimize", json={"unlimited": True}).get_json()["allocations"]
    for name, allocation in answered.items():
        spec = {**client.get(f"/getServer/{name}").get_json(), "currentAlloc": allocation}
        assert client.post("/addServer", json=spec).get_json()["currentAlloc"] == allocation


def test_records_of_another_version_do_not_stop_the_start() -> None:
    record = Record("server", "s", json.dumps({"name": "s", "laterField": 1}))
    assert from_records([record]).system.servers["s"].name == "s"


ODD = [
    ("nested too deeply", b'{"name":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    ("nested too deeply", b'{"name":"x",' + b'"a":{' * 50_000),
    ("half of a surrogate pair", b'{"name":"x","\\ud800":1}'),
    ("is not known", b'{"name":"x","' + b"k" * 10**6 + b'":1}'),
]


@pytest.mark.parametrize(("said", "text"), ODD, ids=range(len(ODD)))
def test_odd_keys_and_depths_are_refused_in_few_words(
    client: FlaskClient, said: str, text: bytes
) -> None:
    response = client.post("/addAccelerator", data=text)
    assert response.status_code == 400
    assert said in response.get_json()["message"]
    assert len(response.text) < 1000


def test_no_body_has_more_faults_than_a_list_may_have_entries(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inferno_json, "MAX_ENTRIES", 100)
    long_ = {"": "servers has 101 entries; give 100 or fewer"}
    assert faults(client, "POST", "/setServers", {"servers": [0] * 101}) == long_
    misspelt = [{"name": "s", "minreplicas": 1, "maxreplicas": 2}] * 60
    many = faults(client, "POST", "/setServers", {"servers": misspelt})
    assert many == {"": "120 faults; send fewer entries"}
    targets = {"name": "c", "modelTargets": [0] * 100}
    found = faults(client, "POST", "/setServiceClasses", {"serviceClasses": [targets] * 3})
    assert [*found] == [f"serviceClasses[{number}].modelTargets[0]" for number in range(3)]
