"""The model against simulations that share no code with it."""

from pathlib import Path

import numpy as np

from optimizer.model.latency import PhaseModel
from optimizer.model.queueing import Replica
from tests.optimizer.simulation import Effort, simulate_chains, table

DOCS = Path(__file__).parents[2] / "docs" / "optimizer.md"


def test_formulas_agree_with_the_simulated_chain_within_two_percent() -> None:
    """20 random parameter sets at utilisation 0.3, 0.6 and 0.9 of what saturates them."""
    rng = np.random.default_rng(2)
    sets, loads = 20, np.array([0.3, 0.6, 0.9])
    values = (
        rng.uniform(5, 40, sets), rng.uniform(0.1, 2, sets), rng.uniform(5, 200, sets),
        rng.uniform(0.001, 0.02, sets), rng.integers(16, 512, sets).astype(float),
        rng.integers(4, 64, sets).astype(float),
    )  # fmt: skip
    model = PhaseModel(*(np.repeat(value, loads.size) for value in values))
    batch = np.repeat(rng.integers(1, 9, sets), loads.size)
    queue = np.repeat(rng.integers(2, 9, sets), loads.size)
    replica = Replica(model, batch, queue)
    rate = np.tile(loads, sets) * replica.max_rate_per_ms()
    service_ms = np.stack([model.service_ms(float(n)) for n in range(9)], axis=1)
    seen = simulate_chains(service_ms, rate, batch, queue, Effort(events=2500, copies=500, seed=7))
    found = replica.analyze(rate)

    np.testing.assert_allclose(found.throughput_per_ms, seen.throughput_per_ms, rtol=0.02)
    # What the chain shows is the mean service time; the concurrency that explains it gives the
    # latencies, as the model defines them.
    concurrency = (seen.service_ms - model.fixed_ms) / model.slope_ms
    itl_ms = model.alpha_ms + model.beta_ms * concurrency
    prefill_ms = model.gamma_ms + model.delta_ms * model.in_tokens * concurrency
    np.testing.assert_allclose(found.itl_ms, itl_ms, rtol=0.02)
    np.testing.assert_allclose(found.ttft_ms, seen.wait_ms + prefill_ms, rtol=0.02)
    # A wait of a thousandth of the service is a few rare events; there the noise is absolute.
    np.testing.assert_array_less(
        np.abs(found.wait_ms - seen.wait_ms),
        0.02 * seen.wait_ms + 0.0005 * seen.service_ms,
    )


def test_error_table_in_the_documentation_is_the_one_measured() -> None:
    documented = DOCS.read_text().splitlines()
    assert [row for row in table() if row not in documented] == []
