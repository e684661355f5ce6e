"""What people tell a search: failed trials, rounded weights, caps that change, odd names."""

from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.weights.support import UPDATE, new_client, search, update
from weights.partition import engine_settings

SESSION = "/weights/sessions/s"
NEEDS_LAYERS = {"vllm", "sglang", "exo", "pipeline"}
quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def client() -> FlaskClient:
    return new_client()


def tell(client: FlaskClient, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(UPDATE, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.get_json()
    return answer


def split(client: FlaskClient, **fields: Any) -> dict[str, Any]:
    response = client.post(f"{SESSION}/partition", json=fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.get_json()
    return answer


@quick
@given(
    weights=st.lists(st.floats(0.001, 100), min_size=2, max_size=8),
    num_layers=st.integers(8, 80),
)
def test_every_node_gets_a_layer_where_its_cap_allows_one(
    weights: list[float], num_layers: int
) -> None:
    client = new_client()
    shares = [weight / sum(weights) for weight in weights]
    tell(client, update(shares, 1.0))
    answer = split(client, num_layers=num_layers, weights=shares)
    assert min(answer["layers_per_node"]) >= 1
    assert answer["engines"].keys() >= NEEDS_LAYERS


def test_small_memories_get_a_layer_each(client: FlaskClient) -> None:
    tell(client, update([0.975, 0.0125, 0.0125], 1.0))
    shares = [0.975, 0.0125, 0.0125]
    assert split(client, num_layers=20, weights=shares)["layers_per_node"] == [18, 1, 1]
    bare = split(client, num_layers=20, weights=shares, min_layers=0)
    assert bare["layers_per_node"] == [20, 0, 0]


def test_a_cap_below_one_layer_leaves_its_node_out_and_the_engines_that_need_it(
    client: FlaskClient,
) -> None:
    tell(client, update([0.99, 0.01], 1.0) | {"max_weightings": [1.0, 0.01]})
    answer = split(client, num_layers=20)
    assert answer["layers_per_node"] == [20, 0]
    assert answer["engines"].keys() == {"layers", "llama_cpp", "llama_bench"}


def test_llama_bench_is_told_the_split_in_its_own_form() -> None:
    settings_of = engine_settings((3, 4, 5))
    assert settings_of["llama_cpp"] == {"--tensor-split": "2.5,4,6.5"}
    assert settings_of["llama_bench"] == {"--tensor-split": "2.5/4/6.5"}


def rate(weights: list[float]) -> float:
    """Of a pipeline with nodes of speeds 1, 2 and 4."""
    stages = [w / speed for w, speed in zip(weights, (1, 2, 4), strict=True)]
    return 10 / max(stages)


TRIED = [[0.2, 0.3, 0.5], [0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6], [0.15, 0.25, 0.6],
         [0.4, 0.4, 0.2], [0.25, 0.25, 0.5], [0.1, 0.3, 0.6]]  # fmt: skip
FAILED = [0.9, 0.05, 0.05]


def test_a_failed_trial_leaves_the_pipeline_model_in_use(client: FlaskClient) -> None:
    for weights in TRIED:
        tell(client, update(weights, rate(weights)))
    before = client.get(SESSION).get_json()
    tell(client, update(FAILED, 0.0))
    after = client.get(SESSION).get_json()
    assert before["model"] == after["model"] == "slowest_stage"
    assert after["noise_aware_best"] == before["noise_aware_best"]
    proposed = client.post("/weights_gen", json=search(3, seed=1, count=8)).get_json()
    assert {one["model"] for one in proposed["proposals"]} == {"slowest_stage"}
    assert FAILED not in [one["weights"] for one in proposed["proposals"]]


def test_trials_that_all_failed_are_no_reason_to_stop(client: FlaskClient) -> None:
    for weights in TRIED:
        tell(client, update(weights, 0.0))
    assert client.get(SESSION).get_json()["convergence"]["converged"] is False


@quick
@given(
    weights=st.lists(st.floats(0.01, 1), min_size=2, max_size=6),
    off=st.floats(-0.0009, 0.0009),
)
def test_weights_that_nearly_sum_to_1_are_taken_as_the_nearest_that_do(
    weights: list[float], off: float
) -> None:
    client = new_client()
    given_shares = [(1 + off) * weight / sum(weights) for weight in weights]
    caps = [min(1.0, max(share, weight / sum(weights)) + 2e-4)
            for share, weight in zip(given_shares, weights, strict=True)]  # fmt: skip
    body = update(given_shares, 1.0) | {"max_weightings": caps}
    best = tell(client, body)["best_weights"]
    assert sum(best) == pytest.approx(1, abs=1e-9)
    assert all(share <= cap + 1e-9 for share, cap in zip(best, caps, strict=True))
    assert best == pytest.approx(given_shares, abs=1.1e-3)


@quick
@given(
    tried=st.lists(st.tuples(st.floats(0.05, 0.95), st.floats(1, 100)), min_size=1, max_size=6),
    cap=st.floats(0.5, 0.9),
    num_layers=st.sampled_from([None, 20]),
)
def test_best_keeps_within_the_caps_that_were_told_last(
    tried: list[tuple[float, float]], cap: float, num_layers: int | None
) -> None:
    client = new_client()
    for share, metric in tried:
        tell(client, update([share, 1 - share], metric))
    caps = {"max_weightings": [cap, cap], "num_layers": num_layers}
    answer = tell(client, update([0.5, 0.5], 0.5) | caps)
    shown = client.get(SESSION).get_json()
    listed = client.get("/weights/sessions").get_json()["sessions"][0]
    allowed = [0.5, *(metric for share, metric in tried if max(share, 1 - share) <= cap + 1e-6)]
    assert answer["best_perf_metric"] == shown["best"]["performance_metric"] == max(allowed)
    assert listed["best"] == shown["best"]
    for best in (answer["best_weights"], shown["noise_aware_best"]["weights"]):
        assert max(best) <= cap + 1e-6


@quick
@given(name=st.text("a/.\n\r \u2028%?#é", min_size=1, max_size=8))
def test_a_session_of_any_name_is_read_and_deleted_by_its_path(name: str) -> None:
    client = new_client()
    tell(client, update([0.5, 0.5], 1.0) | {"session_id": name})
    path = f"/weights/sessions/{quote(name, safe='')}"
    assert client.get(path).get_json()["session_id"] == name
    assert client.delete(path).status_code == 200
    assert client.get(path).status_code == 404
