"""Runs public optimisers on the objectives of `bench-weights`, in a virtual environment.

`python -m lab.benches.weights.peers METHOD KIND NODES BUDGET SEED...` prints one JSON line per
seed: the regret of the best value seen after each budget. Optimisers search a unit cube with one
number per node. Its points become partitions: normalised exponential variables are uniform on the
simplex, and shares cut off by a cap are spread over other nodes in proportion.
"""

import json
import sys
import warnings
from collections.abc import Callable

import numpy as np
import optuna  # type: ignore[import-not-found]  # only in the peers' environment
import skopt  # type: ignore[import-not-found]

from lab.benches.weights.objectives import FloatArray, Task, make_task

CHECKPOINTS = (25, 50, 100, 200)


def main() -> None:
    method, kind, nodes, budget, *seeds = sys.argv[1:]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    for seed in map(int, seeds):
        task = make_task(kind, int(nodes), seed)
        print(json.dumps(regrets(task, method, int(budget), seed)), flush=True)


def regrets(task: Task, method: str, budget: int, seed: int) -> dict[str, float]:
    noise = np.random.default_rng([seed, 1])
    best_metric, best_weights, found = -np.inf, np.empty(0), {}
    ask, tell = METHODS[method](len(task.upper), seed)
    for trial in range(1, budget + 1):
        weights = to_partition(ask(), task.upper)
        metric = task.measure(weights, noise)
        tell(metric)
        if metric > best_metric:
            best_metric, best_weights = metric, weights
        if trial in CHECKPOINTS:
            found[str(trial)] = task.regret(best_weights)
    return found


def to_partition(cube: FloatArray, upper: FloatArray) -> FloatArray:
    shares = -np.log(np.clip(cube, 1e-9, 1.0 - 1e-9))
    is_capped = np.zeros(len(upper), dtype=bool)
    while True:
        left = 1.0 - upper[is_capped].sum()
        weights = np.where(is_capped, upper, left * shares / shares[~is_capped].sum())
        over = weights > upper
        if not over.any():
            partition: FloatArray = weights
            return partition
        is_capped |= over


Ask = Callable[[], FloatArray]
Tell = Callable[[float], None]


def optuna_with(sampler: optuna.samplers.BaseSampler, nodes: int) -> tuple[Ask, Tell]:
    study = optuna.create_study(direction="maximize", sampler=sampler)
    trials: list[optuna.Trial] = []

    def ask() -> FloatArray:
        trials.append(study.ask())
        return np.array([trials[-1].suggest_float(f"w{node}", 0.0, 1.0) for node in range(nodes)])

    return ask, lambda metric: study.tell(trials[-1], metric)


def tpe(nodes: int, seed: int) -> tuple[Ask, Tell]:
    return optuna_with(optuna.samplers.TPESampler(seed=seed), nodes)


def cma(nodes: int, seed: int) -> tuple[Ask, Tell]:
    return optuna_with(optuna.samplers.CmaEsSampler(seed=seed), nodes)


def gp(nodes: int, seed: int) -> tuple[Ask, Tell]:
    """Returns scikit-optimize's Gaussian process with expected improvement, on log metrics."""
    optimizer = skopt.Optimizer(
        [(0.0, 1.0)] * nodes,
        "GP",
        acq_func="EI",
        acq_optimizer="sampling",
        n_initial_points=10,
        random_state=seed,
    )
    asked: list[list[float]] = []

    def ask() -> FloatArray:
        asked.append(optimizer.ask())
        return np.array(asked[-1], dtype=np.float64)

    return ask, lambda metric: optimizer.tell(asked[-1], -float(np.log(metric)))


METHODS = {"tpe": tpe, "cma": cma, "gp": gp}


if __name__ == "__main__":
    main()
