"""Faults that a service of this kind is known for, each by name: ours has none of them."""

import json
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient

from tests.weights.memory_store import MemoryStore
from tests.weights.support import GENERATE, UPDATE, new_client, search, update
from weights.errors import InvalidRequest
from weights.schema import Body, GenerateBody, NodesBody, PartitionBody, SearchBody


@pytest.fixture
def client() -> FlaskClient:
    return new_client()


def ask(client: FlaskClient, **body: Any) -> list[float]:
    response = client.post(GENERATE, json=search(body.pop("n"), **body))
    assert response.status_code == 200, response.text
    weights: list[float] = response.get_json()["weights"]
    return weights


@pytest.mark.parametrize("body", [NodesBody, SearchBody, GenerateBody, PartitionBody])
def test_whole_numbers_are_integers_and_no_others_are(body: type[Body]) -> None:
    whole = {"number_of_nodes": 2, "num_layers": 4, "seed": 3, "count": 2, "min_layers": 1}
    others = {"session_id": "s", "max_weightings": [1.0, 1.0]}

    def read(numbers: dict[str, Any]) -> Body:
        return body.parse(json.dumps(others | numbers).encode())

    assert read({name: float(number) for name, number in whole.items()}) == read(whole)
    for name in whole.keys() & body.model_fields:
        for wrong in (2.5, "2", True, 1e300):
            with pytest.raises(InvalidRequest):
                read(whole | {name: wrong})


@pytest.mark.parametrize("n", [2, 4, 8, 16, 256])
def test_exact_float_sums_do_not_refuse_honest_clients(client: FlaskClient, n: int) -> None:
    rng = np.random.default_rng(n)
    vectors = rng.dirichlet(np.ones(n), 100)
    assert any(sum(weights.tolist()) != 1.0 for weights in vectors)
    for weights in vectors:
        body = update(weights.tolist(), 1.0, session_id=str(n))
        assert client.post(UPDATE, json=body).status_code == 200


@pytest.mark.parametrize(("n", "cap"), [(4, 1.1 / 4), (8, 1.25 / 8), (8, 1 / 8), (16, 1.05 / 16)])
def test_tight_caps_never_fail_sampling(client: FlaskClient, n: int, cap: float) -> None:
    for seed in range(20):
        weights = ask(client, n=n, max_weightings=[cap] * n, seed=seed)
        assert sum(weights) == pytest.approx(1)
        assert max(weights) <= cap + 1e-9


def test_a_converged_search_does_not_fall_back_to_chance(client: FlaskClient) -> None:
    for number in range(60):
        share = 0.7 + 1e-9 * number
        client.post(UPDATE, json=update([share, 1 - share], 1.0))
    weights = ask(client, n=2, seed=1)
    assert weights[0] + weights[1] == pytest.approx(1)


def test_zero_weights_are_normal(client: FlaskClient) -> None:
    for number in range(60):
        share = number / 59
        body = update([share, 0.0, 1 - share], -abs(share - 0.5))
        assert client.post(UPDATE, json=body).status_code == 200
    response = client.post(GENERATE, json=search(3, seed=1))
    assert response.status_code == 200
    assert client.get("/weights/sessions/s").status_code == 200


class CountingStore(MemoryStore):
    """Counts the observations that are read."""

    num_read = 0

    def observations(self, *arguments: Any) -> Any:
        found = super().observations(*arguments)
        self.num_read += len(found)
        return found


def test_an_update_reads_nothing_of_the_history() -> None:
    store = CountingStore()
    client = new_client(store)
    for number in range(50):
        client.post(UPDATE, json=update([0.5, 0.5], float(number)))
    assert store.num_read == 0


def test_one_lucky_measurement_does_not_win_for_ever(client: FlaskClient) -> None:
    """A split that was measured often around 9 is better than one around 5 that once saw 10."""
    rng = np.random.default_rng(5)
    for _ in range(30):
        client.post(UPDATE, json=update([0.5, 0.5], 9.0 + 0.3 * rng.standard_normal()))
        client.post(UPDATE, json=update([0.9, 0.1], 5.0 + 0.3 * rng.standard_normal()))
    client.post(UPDATE, json=update([0.9, 0.1], 10.5))
    shown = client.get("/weights/sessions/s").get_json()
    assert shown["best"]["weights"] == [0.9, 0.1]
    assert shown["noise_aware_best"]["weights"] == [0.5, 0.5]
    assert shown["noise_aware_best"]["performance_metric"] == pytest.approx(9.0, abs=0.5)
