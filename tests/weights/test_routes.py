"""The table of the routes, row by row: texts, fields, status, and what changed."""

import gzip
import json
from io import BytesIO
from typing import Any

import pytest
from flask.testing import FlaskClient
from gunicorn.http.errors import InvalidChunkSize

from common.errors import StoreFailed
from common.turns import LARGE_BODY_BYTES
from tests.recorded_turns import recorded_turns
from tests.weights.memory_store import MemoryStore
from tests.weights.support import DELETE, GENERATE, UPDATE, new_client, search, update
from weights.store.redis_store import RedisStore

FIRST = "/weights_update/: SUCCESS, first weights in"
BETTER = "/weights_update/: SUCCESS, best weights updated"
NO_CHANGE = "/weights_update/: SUCCESS, no change in best weights"
MISMATCH = "/weights_update/: FAILURE, number of nodes are not the same for the session"
BY_MODEL = "/weights_update/: SUCCESS, model fit, generated weights"
AT_RANDOM = "/weights_update/: SUCCESS, not enough data, generated random weights"


@pytest.fixture
def client() -> FlaskClient:
    return new_client()


def post(client: FlaskClient, path: str, body: Any, status: int = 200) -> Any:
    response = client.post(path, json=body)
    assert (response.status_code, response.content_type) == (status, "application/json")
    return response.get_json()


def tell(client: FlaskClient, session_id: str = "s") -> int:
    response = client.get(f"/weights/sessions/{session_id}")
    return response.get_json()["num_observations"] if response.status_code == 200 else 0


def test_first_better_and_other_updates_say_what_they_are(client: FlaskClient) -> None:
    assert post(client, UPDATE, update([0.5, 0.5], 1.0)) == {
        "status_code": 200, "message": FIRST,
        "best_perf_metric": 1.0, "best_weights": [0.5, 0.5], "best_out_of": 1,
    }  # fmt: skip
    better = post(client, UPDATE, update([0.7, 0.3], 2.0))
    assert (better["message"], better["best_weights"]) == (BETTER, [0.7, 0.3])
    equal = post(client, UPDATE, update([0.6, 0.4], 2.0))
    assert equal == {
        "status_code": 200, "message": NO_CHANGE,
        "best_perf_metric": 2.0, "best_weights": [0.7, 0.3], "best_out_of": 3,
    }  # fmt: skip


def test_less_is_better_where_the_direction_says_so(client: FlaskClient) -> None:
    metrics = [3.0, 4.0, 1.0]
    answers = [post(client, UPDATE, update([0.5, 0.5], m, direction="minimize")) for m in metrics]
    assert [a["message"] for a in answers] == [FIRST, NO_CHANGE, BETTER]
    assert answers[-1]["best_perf_metric"] == 1.0


@pytest.mark.parametrize("path", [UPDATE, GENERATE])
@pytest.mark.parametrize(
    "other", [update([0.2, 0.3, 0.5], 9.0), update([0.5, 0.5], 9.0, direction="minimize")]
)
def test_another_kind_of_search_conflicts_and_stores_nothing(
    client: FlaskClient, path: str, other: dict[str, Any]
) -> None:
    post(client, UPDATE, update([0.5, 0.5], 1.0))
    answer = post(client, path, other, 409)
    assert (answer["status_code"], answer["message"]) == (409, MISMATCH)
    assert "session s is about 2 nodes (maximize)" in answer["error"]["message"]
    assert tell(client) == 1


def test_without_data_weights_are_random_and_within_the_bounds(client: FlaskClient) -> None:
    body = search(4, max_weightings=[0.3] * 4, min_weightings=[0.2] * 4)
    answer = post(client, GENERATE, body)
    assert (answer["message"], answer["model"]) == (AT_RANDOM, "random")
    assert sum(answer["weights"]) == pytest.approx(1)
    assert all(0.2 <= weight <= 0.3 for weight in answer["weights"])
    assert client.get("/weights/sessions").get_json()["sessions"] == []


@pytest.mark.parametrize("sampler", ["adaptive", "dirichlet_mle"])
def test_with_data_weights_come_from_a_model_that_is_named(sampler: str) -> None:
    client = new_client(sampler=sampler)
    for number in range(60):
        share = (number + 1) / 61
        post(client, UPDATE, update([share, 1 - share], -((share - 0.8) ** 2)))
    answer = post(client, GENERATE, search(2, seed=1))
    assert answer["message"] == BY_MODEL
    assert answer["model"] != "random"
    assert abs(answer["weights"][0] - 0.8) < 0.3


def test_one_seed_gives_the_same_weights_and_the_history_moves_them_on(client: FlaskClient) -> None:
    first = post(client, GENERATE, search(3, seed=7))
    assert post(client, GENERATE, search(3, seed=7)) == first
    assert post(client, GENERATE, search(3, seed=8)) != first
    assert post(client, GENERATE, search(3)) != post(client, GENERATE, search(3))
    post(client, UPDATE, update([0.2, 0.3, 0.5], 1.0))
    assert post(client, GENERATE, search(3, seed=7)) != first


def test_several_weights_are_asked_for_at_once(client: FlaskClient) -> None:
    answer = post(client, GENERATE, search(3, count=5))
    assert len(answer["proposals"]) == 5
    assert answer["weights"] == answer["proposals"][0]["weights"]
    assert len({tuple(one["weights"]) for one in answer["proposals"]}) == 5


def test_proposals_are_whole_layers_where_they_are_counted(client: FlaskClient) -> None:
    answer = post(client, GENERATE, search(3, count=8, num_layers=10, max_weightings=[0.5] * 3))
    for proposal in answer["proposals"]:
        layers = [10 * weight for weight in proposal["weights"]]
        assert layers == pytest.approx([round(one) for one in layers])
        assert max(layers) <= 5


def test_a_session_is_deleted_once(client: FlaskClient) -> None:
    post(client, UPDATE, update([0.5, 0.5], 1.0))
    assert post(client, DELETE, update([0.5, 0.5], 1.0)) == {
        "status_code": 200, "message": "/weights_update_delete/: SUCCESS, key session_s deleted",
    }  # fmt: skip
    assert post(client, DELETE, {"session_id": "s"})["message"] == (
        "/weights_update_delete/: FAILURE, key session_s not found"
    )
    assert tell(client) == 0


def test_log_checks_and_echoes(client: FlaskClient) -> None:
    body = {"number_of_nodes": 2, "weights": [0.25, 0.75]}
    assert post(client, "/weights_log", body) == {
        "status_code": 200, "message": "weights_log: SUCCESS", **body,
    }  # fmt: skip
    post(client, "/weights_log", {"number_of_nodes": 3, "weights": [0.25, 0.75]}, 422)


@pytest.mark.parametrize("path", [UPDATE, GENERATE, DELETE, "/weights_log"])
def test_a_trailing_slash_makes_no_difference_and_no_redirect(
    client: FlaskClient, path: str
) -> None:
    assert post(client, f"{path}/", update([0.5, 0.5], 1.0))["status_code"] == 200
    assert client.get("/weights/sessions/").status_code == 200


@pytest.mark.parametrize(
    ("change", "place", "kind"),
    [
        ({"session_id": None}, "session_id", "string_type"),
        ({"session_id": ""}, "session_id", "string_too_short"),
        ({"number_of_nodes": 1}, "number_of_nodes", "greater_than_equal"),
        ({"number_of_nodes": "2"}, "number_of_nodes", "int_type"),
        ({"number_of_nodes": 3}, "max_weightings", "wrong_length"),
        ({"max_weightings": [1.0]}, "max_weightings", "wrong_length"),
        ({"max_weightings": [0.0, 1.0]}, "max_weightings.0", "greater_than"),
        ({"max_weightings": [1.5, 1.0]}, "max_weightings.0", "less_than_equal"),
        ({"max_weightings": [0.5, 0.3]}, "max_weightings", "caps_too_low"),
        ({"min_weightings": [0.7, 0.6]}, "min_weightings", "floors_too_high"),
        ({"min_weightings": [0.7]}, "min_weightings", "wrong_length"),
        ({"min_weightings": [0.5, 0.0], "max_weightings": [0.4, 1.0]}, "min_weightings",
         "floor_above_cap"),
        ({"direction": "up"}, "direction", "literal_error"),
        ({"num_layers": 0}, "num_layers", "greater_than_equal"),
        ({"num_layers": 1, "max_weightings": [0.6, 0.6]}, "num_layers", "no_partition"),
        ({"weights": [0.5]}, "weights", "wrong_length"),
        ({"weights": [0.6, 0.6]}, "weights", "wrong_sum"),
        ({"weights": [-0.1, 1.1]}, "weights", "out_of_bounds"),
        ({"weights": [0.9, 0.1], "max_weightings": [0.8, 1.0]}, "weights", "out_of_bounds"),
        ({"weights": [0.1, 0.9], "min_weightings": [0.2, 0.0]}, "weights", "out_of_bounds"),
        ({"weights": [float("nan"), 1.0]}, "weights.0", "finite_number"),
        ({"performance_metric": float("inf")}, "performance_metric", "finite_number"),
        ({"performance_metric": float("nan")}, "performance_metric", "finite_number"),
        ({"performance_metric": 1e101}, "performance_metric", "less_than_equal"),
        ({"performance_metric": True}, "performance_metric", "float_type"),
    ],
)  # fmt: skip
def test_an_invalid_body_is_refused_with_its_place_and_stores_nothing(
    client: FlaskClient, change: dict[str, Any], place: str, kind: str
) -> None:
    answer = post(client, UPDATE, update([0.5, 0.5], 1.0, max_weightings=[1.0, 1.0]) | change, 422)
    assert set(answer) == {"status_code", "message", "detail", "error"}
    assert answer["status_code"] == 422
    found = {(".".join(map(str, d["loc"])), d["type"]) for d in answer["detail"]}
    assert (f"body.{place}", kind) in found
    assert answer["error"]["code"] == "invalid_request"
    assert client.get("/weights/sessions").get_json()["sessions"] == []


def test_of_many_wrong_numbers_the_first_of_each_list_is_told(client: FlaskClient) -> None:
    wrong = {"weights": ["x"] * 256, "performance_metric": 1}
    body = search(256) | {"observations": [wrong] * 3}
    answer = post(client, "/weights/sessions/s/observations", body, 422)
    places = [each["loc"] for each in answer["detail"]]
    assert places == [["body", "observations", number, "weights", 0] for number in range(3)]
    assert len(post(client, UPDATE, search(2) | wrong, 422)["detail"]) == 1


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"session_id": "\\ud800"}']
)
def test_what_is_hardly_json_is_refused(client: FlaskClient, raw: bytes) -> None:
    for path in (UPDATE, GENERATE, DELETE, "/weights_log"):
        assert client.post(path, data=raw).status_code == 422


def test_every_fault_is_listed(client: FlaskClient) -> None:
    answer = post(client, UPDATE, {"number_of_nodes": 1, "direction": 3}, 422)
    assert [d["loc"][1] for d in answer["detail"]] == [
        "number_of_nodes", "max_weightings", "direction", "session_id", "weights",
        "performance_metric",
    ]  # fmt: skip


def test_low_caps_are_refused_by_how_much_before_any_sampling(client: FlaskClient) -> None:
    answer = post(client, GENERATE, search(4, max_weightings=[0.2] * 4), 422)
    assert "max_weightings sum to 0.8, 0.2 less than 1" in answer["message"]


@pytest.mark.parametrize("path", [UPDATE, GENERATE, DELETE])
def test_a_large_body_is_refused(path: str) -> None:
    client = new_client(max_body_bytes=1024)
    assert post(client, path, {"session_id": "x" * 2000}, 413)["status_code"] == 413
    chunked = client.post(path, input_stream=None, data=b" " * 2000)
    assert chunked.status_code == 413


class HalfBrokenStore(MemoryStore):
    def append(self, *_: Any) -> Any:
        raise StoreFailed("no space left")


@pytest.mark.parametrize("path", [UPDATE, GENERATE, DELETE])
def test_an_unreachable_store_is_a_503(path: str) -> None:
    client = new_client(RedisStore("redis://127.0.0.1:1/0"))
    answer = post(client, path, update([0.5, 0.5], 1.0), 503)
    assert answer["error"]["code"] == "store_failed"
    for get in ("/weights/sessions", "/weights/sessions/s"):
        assert client.get(get).status_code == 503


def test_an_update_that_is_not_stored_is_no_success() -> None:
    client = new_client(HalfBrokenStore())
    assert "no space left" in post(client, UPDATE, update([0.5, 0.5], 1.0), 503)["message"]
    assert tell(client) == 0


# Ours.


def test_a_session_shows_its_history_in_pages_and_what_is_best(client: FlaskClient) -> None:
    for number in range(5):
        post(client, UPDATE, update([0.5, 0.5], float(number), num_layers=8))
    shown = client.get("/weights/sessions/s?offset=1&limit=2").get_json()
    assert shown["history"] == [
        {"weights": [0.5, 0.5], "performance_metric": 1.0},
        {"weights": [0.5, 0.5], "performance_metric": 2.0},
    ]
    assert (shown["offset"], shown["limit"], shown["num_observations"]) == (1, 2, 5)
    assert (shown["number_of_nodes"], shown["num_layers"]) == (2, 8)
    assert shown["best"] == {"weights": [0.5, 0.5], "performance_metric": 4.0}
    noise_aware = shown["noise_aware_best"]
    assert noise_aware["performance_metric"] == pytest.approx(2.0, abs=0.3)
    low, high = noise_aware["interval_90"]
    assert low < 2.0 < high
    assert set(shown["convergence"]) == {"converged", "reason"}


def test_a_single_measurement_bounds_nothing(client: FlaskClient) -> None:
    post(client, UPDATE, update([0.5, 0.5], 1.0))
    text = client.get("/weights/sessions/s").text
    best = json.loads(text, parse_constant=pytest.fail)["noise_aware_best"]
    assert best["interval_90"] == [None, None]


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "offset=-1", "offset=x"])
def test_a_wrong_page_is_refused(client: FlaskClient, query: str) -> None:
    post(client, UPDATE, update([0.5, 0.5], 1.0))
    for path in ("/weights/sessions", "/weights/sessions/s"):
        response = client.get(f"{path}?{query}")
        assert response.status_code == 422
        assert response.get_json()["detail"][0]["loc"] == ["query", query.split("=")[0]]


def test_sessions_are_listed_in_pages(client: FlaskClient) -> None:
    for name in ("b", "a", "c"):
        post(client, UPDATE, update([0.5, 0.5], 1.0, session_id=name))
    listed = client.get("/weights/sessions?limit=2&offset=1").get_json()
    assert [one["session_id"] for one in listed["sessions"]] == ["b", "c"]
    assert listed["sessions"][0]["num_observations"] == 1


@pytest.mark.parametrize("name", ["org/model", "ü b", "a/b/", "s/plot"])
def test_a_session_is_found_under_any_name(client: FlaskClient, name: str) -> None:
    post(client, UPDATE, update([0.5, 0.5], 1.0, session_id=name))
    shown = client.get(f"/weights/sessions/{name}")
    assert shown.get_json()["session_id"] == name
    assert client.delete(f"/weights/sessions/{name}").status_code == 200
    assert client.delete(f"/weights/sessions/{name}").status_code == 404


def test_many_are_told_at_once_or_none(client: FlaskClient) -> None:
    path = "/weights/sessions/s/observations"
    body = {"number_of_nodes": 2, "max_weightings": [1.0, 1.0], "observations": [
        {"weights": [0.5, 0.5], "performance_metric": 1.0},
        {"weights": [0.6, 0.4], "performance_metric": 3.0},
        {"weights": [0.7, 0.3], "performance_metric": 2.0},
    ]}  # fmt: skip
    answer = post(client, path, body)
    assert (answer["message"], answer["best_out_of"]) == (FIRST, 3)
    assert answer["best_weights"] == [0.6, 0.4]
    body["observations"][1]["weights"] = [0.6, 0.5]  # type: ignore[index]
    refused = post(client, path, body, 422)
    assert "[1].weights sum to 1.1" in refused["message"]
    assert tell(client) == 3
    post(client, path, {**body, "observations": []}, 422)


def test_the_best_split_is_given_in_whole_layers(client: FlaskClient) -> None:
    post(client, UPDATE, update([0.31, 0.69], 1.0, max_weightings=[0.4, 1.0]))
    answer = post(client, "/weights/sessions/s/partition", {"num_layers": 10})
    assert answer["layers_per_node"] == [3, 7]
    assert answer["layers"] == [[0, 3], [3, 10]]
    assert answer["engines"]["vllm"] == {"VLLM_PP_LAYER_PARTITION": "3,7"}


def test_given_weights_are_partitioned_within_the_caps_of_the_session(client: FlaskClient) -> None:
    path = "/weights/sessions/s/partition"
    post(client, path, {"num_layers": 10}, 404)
    post(client, UPDATE, update([0.31, 0.69], 1.0, max_weightings=[0.45, 1.0]))
    given = {"num_layers": 10, "weights": [0.45, 0.55]}
    assert post(client, path, given)["layers_per_node"] == [4, 6]
    assert post(client, path, {"num_layers": 10, "min_layers": 4})["layers_per_node"] == [4, 6]
    for wrong in ({"weights": [0.5, 0.5]}, {"weights": [1.0]}, {"min_layers": 6}):
        assert post(client, path, {"num_layers": 10, **wrong}, 422)["status_code"] == 422
    post(client, path, {}, 422)


@pytest.mark.parametrize("path", ["/weights/sessions/s", "/weights/sessions/s/partition"])
def test_what_is_about_an_unknown_session_is_not_found(client: FlaskClient, path: str) -> None:
    verb = client.post if path.endswith("partition") else client.get
    answer = verb(path, json={"num_layers": 4})
    assert answer.status_code == 404
    assert "session s not found" in answer.get_json()["message"]


def test_unknown_paths_and_verbs_are_answered_in_json(client: FlaskClient) -> None:
    message = "GET /nope: Not Found; /docs/ has the routes"
    assert client.get("/nope").get_json() == {"status_code": 404, "message": message}
    refused = client.get(UPDATE)
    assert (refused.get_json()["status_code"], refused.allow) == (405, {"POST", "OPTIONS"})
    assert client.get("/health").get_json() == {"status": "ok"}


class BrokenChunks(BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        raise InvalidChunkSize(b"zz")


def test_malformed_chunks_are_answered_with_422(client: FlaskClient) -> None:
    terminated = {"wsgi.input_terminated": True}
    response = client.post(UPDATE, input_stream=BrokenChunks(), environ_overrides=terminated)
    assert response.status_code == 422
    assert "chunks are malformed" in response.get_json()["message"]


def test_large_bodies_are_read_in_turn(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = recorded_turns(monkeypatch)
    assert client.post(UPDATE, data=b" " * LARGE_BODY_BYTES).status_code == 422
    assert turns == []
    assert client.post(UPDATE, data=b" " * (LARGE_BODY_BYTES + 1)).status_code == 422
    assert turns == ["begin", "end"]


def test_compressed_body_is_refused_in_turn(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = recorded_turns(monkeypatch)
    headers = {"Content-Encoding": "gzip"}
    response = client.post(UPDATE, data=gzip.compress(b"{}"), headers=headers)
    assert response.status_code == 422
    assert "compressed; send it without a Content-Encoding" in response.get_json()["message"]
    assert turns == ["begin", "end"]
