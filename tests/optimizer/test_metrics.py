"""Gauges of replicas, as autoscalers read them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

import optimizer.metrics
from optimizer.app import create_app
from optimizer.settings import Settings
from tests.optimizer.support import server, system_data

RUNS_ON_A = {"accelerator": "A", "numReplicas": 2}


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    return client_of(tmp_path)


def client_of(tmp_path: Path, **settings: Any) -> FlaskClient:
    chosen = Settings(stateful=True, store_path=tmp_path / "o.db", **settings)
    return create_app(chosen).test_client()


def solve(client: FlaskClient, *servers: dict[str, Any], **options: Any) -> None:
    response = client.post("/optimizeOne", json=system_data(list(servers), **options))
    assert response.status_code == 200


def scrape(client: FlaskClient) -> dict[str, float]:
    text = client.get("/metrics").text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    samples = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert len(samples) == len(lines)
    return samples


def ours(samples: Mapping[str, float], name: str = "s") -> dict[str, float]:
    """Desired replicas of a server by accelerator."""
    found = {a: f'optimizer_desired_replicas{{accelerator="{a}",server="{name}"}}' for a in "AB"}
    return {a: samples[series] for a, series in found.items() if series in samples}


def variant(samples: Mapping[str, float], metric: str, **labels: str) -> float | None:
    chosen = {"accelerator_type": "A", "namespace": "default", "variant_name": "s", **labels}
    inside = ",".join(f'{key}="{value}"' for key, value in sorted(chosen.items()))
    return samples.get(f"{metric}{{{inside}}}")


def test_desired_replicas_are_shown_by_server_and_accelerator(client: FlaskClient) -> None:
    solve(client, server("x\ny"), server("unknown", model="zz"))
    samples = scrape(client)
    assert ours(samples, "x\\ny") == {"A": 2}
    assert ours(samples, "unknown") == {}


@pytest.mark.parametrize("prefix", ["inferno", "wva"])
def test_gauges_of_inferno_and_wva_have_the_labels_that_hpas_select_by(
    client: FlaskClient, prefix: str
) -> None:
    solve(client, server(rate=400, currentAlloc=RUNS_ON_A, keepAccelerator=True))
    samples = scrape(client)
    assert variant(samples, f"{prefix}_desired_replicas") == 5
    assert variant(samples, f"{prefix}_current_replicas") == 2
    assert variant(samples, f"{prefix}_desired_ratio") == 2.5


def test_ratio_is_the_desired_count_where_nothing_runs(client: FlaskClient) -> None:
    solve(client, server())
    samples = scrape(client)
    assert variant(samples, "inferno_current_replicas") == 0
    assert variant(samples, "inferno_desired_ratio") == 2


def test_namespace_is_in_the_name_or_in_the_settings(tmp_path: Path) -> None:
    client = client_of(tmp_path, namespace="prod")
    solve(client, server("v:team-a"), server("w"), server("org/model:8B"))
    samples = scrape(client)
    metric = "inferno_desired_replicas"
    assert variant(samples, metric, variant_name="v", namespace="team-a") == 2
    assert variant(samples, metric, variant_name="w", namespace="prod") == 2
    assert variant(samples, metric, variant_name="org/model:8B", namespace="prod") == 2


def test_server_that_moves_is_0_on_the_accelerator_it_leaves(client: FlaskClient) -> None:
    solve(client, server(currentAlloc=RUNS_ON_A), capacity={"B": 10})
    samples = scrape(client)
    assert ours(samples) == {"A": 0, "B": 2}
    assert variant(samples, "inferno_desired_ratio") == 0


def test_accelerator_once_desired_goes_to_0_though_nothing_ran_there(client: FlaskClient) -> None:
    solve(client, server())
    assert ours(scrape(client)) == {"A": 2}
    solve(client, server(), capacity={"B": 10})
    assert ours(scrape(client)) == {"A": 0, "B": 2}


def test_server_that_vanishes_goes_to_0(client: FlaskClient) -> None:
    solve(client, server(), server("t"))
    scrape(client)
    client.get("/removeServer/s")
    samples = scrape(client)
    assert ours(samples) == {"A": 0}
    assert variant(samples, "inferno_current_replicas") == 0
    assert ours(samples, "t") == {"A": 2}


def test_server_that_cannot_be_allocated_is_held_and_not_stopped(client: FlaskClient) -> None:
    solve(client, server(currentAlloc=RUNS_ON_A))
    scrape(client)
    solve(client, server(currentAlloc=RUNS_ON_A), capacity={})
    samples = scrape(client)
    assert ours(samples) == {}
    assert variant(samples, "inferno_current_replicas") == 2
    assert variant(samples, "inferno_desired_ratio") is None


def test_server_scaled_to_zero_is_0_on_the_accelerator_to_be_freed(client: FlaskClient) -> None:
    solve(client, server(rate=0, currentAlloc=RUNS_ON_A))
    assert ours(scrape(client)) == {"A": 0}


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer.metrics, "MAX_REMEMBERED", 2)
    for name in ("first", "second", "third"):
        solve(client, server(name))
        scrape(client)
    samples = scrape(client)
    assert [ours(samples, name) for name in ("first", "second", "third")] == [
        {}, {"A": 0}, {"A": 2},
    ]  # fmt: skip
