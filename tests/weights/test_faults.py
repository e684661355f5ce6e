"""Faults that a service of this kind is known for, each by name: ours has none of them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient

from tests.weights.memory_store import MemoryStore
from tests.weights.support import GENERATE, UPDATE, new_client, search, update
from weights.store.sqlite_store import SqliteStore


@pytest.fixture
def client() -> FlaskClient:
    return new_client()


def ask(client: FlaskClient, **body: Any) -> list[float]:
    response = client.post(GENERATE, json=search(body.pop("n"), **body))
    assert response.status_code == 200, response.text
    weights: list[float] = response.get_json()["weights"]
    return weights


@pytest.mark.parametrize("n", [2, 4, 8, 16, 256])
def test_exact_float_sums_do_not_refuse_honest_clients(client: FlaskClient, n: int) -> None:
    rng = np.random.default_rng(n)
    vectors = rng.dirichlet(np.ones(n), 100)
    assert any(sum(weights.tolist()) != 1.0 for weights in vectors)
    for weights in vectors:
        body = update(weights.tolist(), 1.0, session_id=str(n))
        assert client.post(UPDATE, json=body).status_code == 200


def test_sums_within_the_tolerance_are_stored_as_exactly_one(client: FlaskClient) -> None:
    client.post(UPDATE, json=update([0.3333333, 0.3333333, 0.3333333], 1.0))
    stored = client.get("/weights/sessions/s").get_json()["best"]["weights"]
    assert stored == pytest.approx([1 / 3] * 3, abs=1e-12)
    far = update([0.332, 0.333, 0.333], 1.0)
    assert client.post(UPDATE, json=far).status_code == 422


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


def test_threads_lose_no_update(tmp_path: Path) -> None:
    threads, updates = 8, 25
    app = new_client(SqliteStore(tmp_path / "weights.db")).application

    def tell(thread: int) -> None:
        client = app.test_client()
        for number in range(updates):
            body = update([0.5, 0.5], float(number), session_id="s")
            assert client.post(UPDATE, json=body).status_code == 200

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(tell, range(threads)))
    shown = app.test_client().get("/weights/sessions/s").get_json()
    assert shown["num_observations"] == threads * updates


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


def test_a_failure_is_never_a_200(client: FlaskClient) -> None:
    assert client.post(UPDATE, json=update([0.5, 0.5], 1.0)).status_code == 200
    assert client.post(UPDATE, json=update([1.0, 0.0, 0.0], 1.0)).status_code == 409
    assert client.post(UPDATE, json=update([0.9, 0.9], 1.0)).status_code == 422


def test_less_may_be_better(client: FlaskClient) -> None:
    for metric in (3.0, 1.0, 2.0):
        client.post(UPDATE, json=update([0.5, 0.5], metric, direction="minimize"))
    assert client.get("/weights/sessions/s").get_json()["best"]["performance_metric"] == 1.0


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
