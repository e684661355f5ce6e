"""The routes against a recorded dialogue with the reference, and what is ours."""

import gzip
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from gunicorn.http.errors import InvalidChunkSize

from common.http_routes import HttpRoutes
from common.turns import LARGE_BODY_BYTES
from optimizer.app import create_app
from optimizer.settings import Settings
from tests.optimizer import golden
from tests.optimizer.support import ACCELERATORS, SPEED, perf, server, system_data
from tests.recorded_turns import recorded_turns

TRANSCRIPT = golden.load("rest_transcript.json")


def client_of(tmp_path: Path, stateful: bool = True, **settings: Any) -> FlaskClient:
    chosen = Settings(stateful=stateful, store_path=tmp_path / "o.db", **settings)
    return create_app(chosen).test_client()


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    return client_of(tmp_path)


def _alike(ours: Any, theirs: Any) -> bool:
    """Equal but for the last digits of latencies, and for what ours says in addition."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return theirs.keys() <= ours.keys() and all(_alike(ours[k], theirs[k]) for k in theirs)
    if isinstance(theirs, list) and isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(_alike, ours, theirs))
    if isinstance(theirs, float) and isinstance(ours, float | int):
        return abs(ours - theirs) <= golden.TTFT * abs(theirs)
    return bool(ours == theirs)


NO_MESSAGE = "a 400 has a body that names every fault; the reference's is empty"
DOCUMENTED = "AcceleratorData by default, as documented; the bare list with ?format=list"
ONE_CARD = "multiplicity left out is 1 card, not 0 and so unlimited"
NO_NULL = "a list never given is shown as an empty list, not as null"
SORTED = "lists are in the order of their names"
CHECKED = "a negative number of cards is refused"
SLASHES = "names may contain slashes"
NO_SYSTEM = "a body without a system does not replace the state by nothing"
HIGHS = "useCplex is answered with HiGHS"
CRASHES = "the reference crashes or loops"

# (mode, position) -> why, and the status of ours where it is another
DIFFERENCES: dict[tuple[str, int], tuple[str, int]] = {
    **{("stateful", i): (DOCUMENTED, 200) for i in (0, 6)},
    **{("stateful", i): (ONE_CARD, 200) for i in (10, 11, 12, 22, 23, 24)},
    **{("stateful", i): (NO_NULL, 200) for i in (14, 15)},
    **{("stateful", i): (NO_MESSAGE, 400) for i in (16, 17, 18, 19, 20, 21, 25, 81)},
    ("stateful", 29): (CHECKED, 400),
    ("stateful", 30): (CHECKED, 404),
    **{("stateful", i): (SLASHES, 200) for i in (40, 41)},
    ("stateful", 84): (HIGHS, 200),
    **{("stateful", i): (CRASHES, 200) for i in (95, 100, 105)},
    ("stateful", 101): (NO_SYSTEM, 400),
    ("stateful", 102): (NO_SYSTEM, 200),
    ("stateless", 3): (DOCUMENTED, 200),
    ("stateless", 4): (SORTED, 200),
    ("stateless", 14): (NO_MESSAGE, 400),
    **{("stateless", i): (CRASHES, 200) for i in (16, 17)},
}


@pytest.mark.parametrize("mode", ["stateful", "stateless"])
def test_dialogue_goes_as_with_the_reference_or_differs_for_a_known_reason(
    mode: str, tmp_path: Path
) -> None:
    client = client_of(tmp_path, stateful=mode == "stateful", unknown_keys="ignore")
    for position, said in enumerate(TRANSCRIPT[mode]):
        body = said["body"]
        text = body if body is None or isinstance(body, str) else json.dumps(body)
        response = client.open(said["path"], method=said["verb"], data=text)
        answer = response.get_json() if response.is_json else response.text
        where = (mode, position, said["verb"], said["path"], answer)
        if (mode, position) in DIFFERENCES:
            assert response.status_code == DIFFERENCES[mode, position][1], where
            assert (response.status_code, answer) != (said["status"], said["answer"]), where
        else:
            assert response.status_code == said["status"], where
            assert _alike(answer, said["answer"]), where


def test_both_forms_of_accelerators_and_of_flags_are_understood(client: FlaskClient) -> None:
    client.post("/optimizeOne", json=system_data([server()]))
    assert [a["name"] for a in client.get("/getAccelerators").get_json()["accelerators"]] == [
        "A", "B",
    ]  # fmt: skip
    assert [a["name"] for a in client.get("/getAccelerators?format=list").get_json()] == ["A", "B"]
    for flags in ({"UNLIMITED": True}, {"Optimizer": {"unlimited": True}}):
        assert client.post("/optimize", json=flags).get_json()["summary"]["solver"] == "unlimited"


@pytest.mark.parametrize("encode", [str, lambda name: name.replace("/", "%2F")])
def test_names_with_slashes_are_reached_encoded_or_not(
    client: FlaskClient, encode: Callable[[str], str]
) -> None:
    model, acc, group = "meta-llama/Llama-3", "8x/H100", "gold/eu"
    m, a, c = encode(model), encode(acc), encode(group)
    client.post("/addAccelerator", json={**ACCELERATORS[0], "name": acc})
    assert client.get(f"/addModel/{m}").get_json() == model
    client.post("/addModelAcceleratorPerf", json=perf(acc, name=model))
    assert client.get(f"/addServiceClass/{c}/7").get_json()["priority"] == 7
    client.post(
        "/addServiceClassModelTargets",
        json={"name": group, "priority": 7, "modelTargets": [{"model": model, "slo-itl": 20}]},
    )
    client.post("/addServer", json=server("a/b", model=model) | {"class": group})
    assert client.get(f"/getModelAcceleratorPerf/{m}/{a}").get_json()["acc"] == acc
    assert client.get(f"/getServiceClassModelTarget/{c}/{m}").get_json()["slo-itl"] == 20
    assert client.get(f"/getAccelerator/{a}").get_json()["name"] == acc
    assert client.get(f"/explain/{encode('a/b')}").get_json()["candidates"][0]["feasible"]
    assert client.get(f"/removeServiceClassModelTarget/{c}/{m}").status_code == 200
    assert client.get(f"/removeModelAcceleratorPerf/{m}/{a}").get_json()["name"] == model
    assert client.get(f"/removeServer/{encode('a/b')}").status_code == 200
    assert client.get("/getModelAcceleratorPerf/only-one").status_code == 404


def test_every_fault_of_a_body_is_named_and_nothing_is_changed(client: FlaskClient) -> None:
    client.post("/optimizeOne", json=system_data([server()]))
    before = client.get("/state").get_json()
    wrong = system_data([server(minNumReplicas=-1), server("t", maxBatchSize="8")])
    wrong["system"]["acceleratorData"] = {"accelerators": [{"cost": -1}, {"name": ""}]}
    response = client.post("/optimizeOne", json=wrong)
    assert response.status_code == 400
    assert {fault["path"] for fault in response.get_json()["faults"]} == {
        "system.acceleratorData.accelerators[0].name",
        "system.acceleratorData.accelerators[0].cost",
        "system.acceleratorData.accelerators[1].name",
        "system.serverData.servers[0].minNumReplicas",
        "system.serverData.servers[1].maxBatchSize",
    }
    assert client.get("/state").get_json() == before


def test_adding_what_exists_does_not_wipe_it(client: FlaskClient) -> None:
    client.post("/optimizeOne", json=system_data([server()]))
    client.get("/addModel/m")
    assert len(client.get("/getModel/m").get_json()["models"]) == 2
    changed = client.get("/addServiceClass/c/3").get_json()
    assert (changed["priority"], len(changed["modelTargets"])) == (3, 1)


def test_removed_model_leaves_its_servers_explained(client: FlaskClient) -> None:
    client.post("/optimizeOne", json=system_data([server()]))
    client.get("/removeModel/m")
    answer = client.post("/optimize", json={}).get_json()
    assert answer["unallocated"] == {"s": "model m is not known"}


def test_answer_tells_beside_the_allocations_what_the_reference_only_logs(
    client: FlaskClient,
) -> None:
    answer = client.post("/optimizeOne", json=system_data([server()])).get_json()
    assert answer["allocations"]["s"].keys() == {
        "accelerator", "numReplicas", "maxBatch", "cost", "itlAverage", "ttftAverage", "load",
    }  # fmt: skip
    assert answer["summary"]["totalCost"] == 20
    assert answer["summary"]["allocationByType"][0] == {
        "type": "A", "count": 2, "limit": 10, "cost": 20,
    }  # fmt: skip
    assert answer["changes"]["s"] == {
        "from": {"accelerator": "", "numReplicas": 0},
        "to": {"accelerator": "A", "numReplicas": 2},
        "costDifference": 20,
    }
    assert answer["details"]["s"]["maxRPM"] == pytest.approx(2 * 98.856415, rel=1e-4)
    assert answer["details"]["s"]["powerWatts"] == pytest.approx(512.52, rel=1e-3)


@pytest.mark.parametrize("flags", [{}, {"milpSolver": True, "heterogeneous": True}])
def test_utilisation_and_power_of_the_answer_are_kept_with_the_servers(
    tmp_path: Path, flags: dict[str, Any]
) -> None:
    servers = [server("s"), server("busy", 900)]
    body = system_data(servers, capacity={"A": 8, "B": 20}, **flags)
    details = client_of(tmp_path).post("/optimizeOne", json=body).get_json()["details"]
    kept = client_of(tmp_path).get("/getServers").get_json()["servers"]  # after a restart
    for spec in kept:
        parts = spec["desiredAlloc"].get("parts", [spec["desiredAlloc"]])
        detail = details[spec["name"]]
        assert max(part["utilization"] for part in parts) == detail["utilization"] > 0
        assert sum(part["powerWatts"] for part in parts) == pytest.approx(detail["powerWatts"])


def test_state_is_read_replaced_and_guarded_by_its_etag(client: FlaskClient) -> None:
    client.post("/optimizeOne", json=system_data([server()]))
    client.get("/addModel/bare")
    first = client.get("/state")
    client.get("/removeServer/s")
    stale = client.put("/state", json=first.get_json(), headers={"If-Match": first.headers["ETag"]})
    assert stale.status_code == 412
    restored = client.put("/state", json=first.get_json())
    assert restored.get_json() == first.get_json()
    assert restored.headers["ETag"] == first.headers["ETag"]
    assert client.get("/getModels").get_json() == ["bare", "m"]


def test_state_is_there_after_a_restart(tmp_path: Path) -> None:
    before = client_of(tmp_path)
    before.post("/optimizeOne", json=system_data([server()]))
    before.get("/applyAllocation")
    state = before.get("/state").get_json()
    assert client_of(tmp_path).get("/state").get_json() == state


def test_stateless_requests_keep_nothing_but_what_reads_show(tmp_path: Path) -> None:
    client = client_of(tmp_path, stateful=False)
    client.post("/optimizeOne", json=system_data([server()]))
    assert client.get("/plan").get_json()["steps"][0]["to"] == 2
    assert client.post("/optimize", json={}).status_code == 404
    assert client.put("/state", json={}).status_code == 404
    assert not (tmp_path / "o.db").exists()


def test_questions_are_answered_in_both_modes(tmp_path: Path) -> None:
    for stateful in (True, False):
        client = client_of(tmp_path, stateful)
        client.post("/optimizeOne", json=system_data([server()]))
        body = {**SPEED, "maxBatchSize": 16, "avgInTokens": 128, "avgOutTokens": 512}
        assert client.post("/analyze", json={**body, "arrivalRate": 60}).status_code == 200
        assert client.post("/size", json={**body, "slo-itl": 14}).get_json()["feasible"]
        sweep = {"sweep": "load", "factors": [1, 2]}
        assert len(client.post("/whatif", json=sweep).get_json()["rows"]) == 2


def test_answers_are_written_as_the_reference_writes_them(client: FlaskClient) -> None:
    response = client.post("/addAccelerator", json={"name": "<&>"})
    assert response.text.startswith('{\n    "name": "\\u003c\\u0026\\u003e",\n')
    assert response.content_type == "application/json; charset=utf-8"


def test_bodies_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    client = client_of(tmp_path, max_body_bytes=1024)
    response = client.post("/setServers", data=b" " * 1025)
    assert response.status_code == 413
    assert "OPTIMIZER_MAX_BODY_BYTES" in response.get_json()["message"]


class BrokenChunks(BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        raise InvalidChunkSize(b"zz")


def test_malformed_chunks_are_answered_with_400(client: FlaskClient) -> None:
    terminated = {"wsgi.input_terminated": True}
    response = client.post(
        "/optimizeOne", input_stream=BrokenChunks(), environ_overrides=terminated
    )
    assert response.status_code == 400
    assert "chunks are malformed" in response.get_json()["message"]


def test_model_with_a_name_that_no_state_holds_is_refused(client: FlaskClient) -> None:
    response = client.get(f"/addModel/{'a' * 501}")
    assert response.status_code == 400
    assert "name" in response.text
    assert client.get("/state").status_code == 200
    assert client.get(f"/addModel/{'a' * 500}").status_code == 200
    assert client.get("/state").status_code == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"a": ' + b"9" * 5000 + b"}", "a number has 5000 digits; give 4000 or fewer"),
        (b'{"a": "\xff"}', "byte 7 is no UTF-8; send JSON in UTF-8, not compressed"),
    ],
)
def test_bodies_that_are_no_json_are_refused(
    client: FlaskClient, body: bytes, message: str
) -> None:
    response = client.post("/optimizeOne", data=body)
    assert response.status_code == 400
    assert response.get_json()["message"] == f"malformed JSON: {message}"


@pytest.mark.parametrize("path", ["/setServers", "/analyze", "/optimizeOne"])
def test_large_bodies_are_read_in_turn(
    path: str, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = recorded_turns(monkeypatch)

    def decoded(http: HttpRoutes) -> object:
        turns.append("read")
        return read_body(http)

    read_body = HttpRoutes.decoded
    monkeypatch.setattr(HttpRoutes, "decoded", decoded)
    assert client.post(path, data=b" " * LARGE_BODY_BYTES).status_code == 400
    assert turns == ["read"]
    turns.clear()
    assert client.post(path, data=b" " * (LARGE_BODY_BYTES + 1)).status_code == 400
    assert turns == ["begin", "read", "end"]


def test_compressed_body_is_refused_in_turn(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = recorded_turns(monkeypatch)
    compressed, headers = gzip.compress(b"{}"), {"Content-Encoding": "gzip"}
    response = client.post("/setServers", data=compressed, headers=headers)
    assert response.status_code == 400
    message = "the body is compressed; send it without a Content-Encoding"
    assert response.get_json()["message"] == message
    assert turns == ["begin", "end"]
