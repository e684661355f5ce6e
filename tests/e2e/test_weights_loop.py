"""The known loop over real HTTP: two nodes, the optimum at [0.9, 0.1], 100 rounds of ask, measure
and tell, where the metric is 1 / squared error.

    python -m tests.e2e.test_weights_loop --seeds 20

prints, for each seed, how far the best weights are from the optimum (L2), and the median.
"""

import argparse
from math import dist
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import requests

from lab.kit.servers import TIMEOUT_S
from tests.weights.test_e2e import running

OPTIMUM = (0.9, 0.1)
ROUNDS = 100
WANTED = 0.0005  # median of 20 seeds
EXACT = 1e-12  # squared error at which the metric is capped


def loop(url: str, seed: int) -> float:
    """L2 distance of the best weights from the optimum."""
    common = {"session_id": f"loop-{seed}", "number_of_nodes": 2, "max_weightings": [1.0, 1.0]}
    best: list[float] = []
    with requests.Session() as client:
        for number in range(ROUNDS):
            asked = {**common, "seed": seed * ROUNDS + number}
            weights = client.post(f"{url}/weights_gen", json=asked, timeout=TIMEOUT_S).json()[
                "weights"
            ]
            error = dist(weights, OPTIMUM) ** 2
            told = {**common, "weights": weights, "performance_metric": 1 / max(error, EXACT)}
            answer = client.post(f"{url}/weights_update", json=told, timeout=TIMEOUT_S)
            assert answer.status_code == 200, answer.text
            best = answer.json()["best_weights"]
    return dist(best, OPTIMUM)


def test_the_loop_finds_the_optimum(tmp_path: Path) -> None:
    with running(tmp_path) as (url, _):
        assert loop(url, seed=1) < WANTED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    with TemporaryDirectory() as folder, running(Path(folder)) as (url, _):
        distances = []
        for seed in range(seeds):
            distances.append(loop(url, seed))
            print(f"seed {seed:>2}  {distances[-1]:.2e}", flush=True)
    print(f"median   {median(distances):.2e}")


if __name__ == "__main__":
    main()
