"""Draws from the capped simplex: within the bounds always, and with the right law."""

import numpy as np
import pytest
from scipy import stats

from common.numerics import FloatArray
from weights.simplex import nearest_point, sample_dirichlet, sample_uniform

SEED = 7
LEAST_P = 1e-3  # seeded: what passes once passes always


def brute_force(
    concentration: FloatArray, lower: FloatArray, upper: FloatArray, count: int
) -> FloatArray:
    rng = np.random.default_rng(SEED + 1)
    kept: list[FloatArray] = []
    while sum(map(len, kept)) < count:
        drawn = rng.dirichlet(concentration, 20 * count)
        kept.append(drawn[((drawn >= lower) & (drawn <= upper)).all(axis=1)])
    return np.concatenate(kept)[:count]


@pytest.mark.parametrize(
    ("concentration", "lower", "upper"),
    [
        ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.5, 0.6, 0.7]),
        ([1.0, 1.0, 1.0, 1.0], [0.1, 0.0, 0.0, 0.2], [0.4, 0.3, 1.0, 0.5]),
        ([4.0, 2.0, 1.0], [0.0, 0.1, 0.0], [0.6, 1.0, 0.3]),
        ([0.3, 0.4, 0.5], [0.0, 0.0, 0.0], [0.7, 0.8, 0.9]),
        ([0.5, 3.0, 0.2], [0.0, 0.0, 0.0], [0.6, 0.7, 1.0]),
    ],
)
def test_draws_have_the_law_of_brute_force_rejection(
    concentration: list[float], lower: list[float], upper: list[float]
) -> None:
    alpha, low, high = np.array(concentration), np.array(lower), np.array(upper)
    ours = sample_dirichlet(alpha, low, high, 6000, np.random.default_rng(SEED))
    theirs = brute_force(alpha, low, high, 6000)
    edges = [np.quantile(theirs[:, node], np.linspace(0.0, 1.0, 6)[1:-1]) for node in (0, 1)]
    cells = []
    for drawn in (ours, theirs):
        first, second = (np.searchsorted(edges[node], drawn[:, node]) for node in (0, 1))
        cells.append(np.bincount(5 * first + second, minlength=25))
    table = np.array(cells)[:, np.sum(cells, axis=0) > 20]
    assert stats.chi2_contingency(table).pvalue > LEAST_P


@pytest.mark.parametrize("nodes", [2, 16, 256])
def test_uniform_draws_without_caps_have_the_moments_of_the_simplex(nodes: int) -> None:
    count = 2000 if nodes < 256 else 400
    drawn = sample_uniform(np.zeros(nodes), np.ones(nodes), count, np.random.default_rng(SEED))
    variance = (nodes - 1) / (nodes**2 * (nodes + 1))
    assert stats.kstest(drawn[:, 0], stats.beta(1, nodes - 1).cdf).pvalue > LEAST_P
    assert drawn.mean(axis=0) == pytest.approx(1 / nodes, abs=5 * np.sqrt(variance / count))
    assert float(drawn.var()) == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize("nodes", [2, 8, 64, 256])
@pytest.mark.parametrize("slack", [1.0, 1e-1, 1e-3, 1e-9])
def test_no_caps_are_too_tight(nodes: int, slack: float) -> None:
    upper = np.full(nodes, (1.0 + slack) / nodes)
    drawn = sample_uniform(np.zeros(nodes), upper, 3, np.random.default_rng(SEED))
    assert drawn.sum(axis=1) == pytest.approx(1.0, abs=1e-12)
    assert (drawn >= 0.0).all()
    assert (drawn <= upper).all()
    assert float(np.ptp(drawn, axis=0).max()) > slack / nodes**2


@pytest.mark.parametrize("total", [1e3, 1e6, 1e9])
def test_no_concentration_is_too_high(total: float) -> None:
    mean, count = np.array([0.78, 0.2, 0.02]), 400
    drawn = sample_dirichlet(
        total * mean, np.zeros(3), np.ones(3), count, np.random.default_rng(SEED)
    )
    deviation = np.sqrt(mean * (1.0 - mean) / total)
    assert drawn.mean(axis=0) == pytest.approx(mean, abs=5 * deviation.max() / np.sqrt(count))
    assert drawn.std(axis=0) == pytest.approx(deviation, rel=0.2)


def test_caps_that_sum_to_one_leave_one_point() -> None:
    upper = np.array([0.5, 0.3, 0.2])
    drawn = sample_uniform(np.zeros(3), upper, 4, np.random.default_rng(SEED))
    assert drawn == pytest.approx(np.tile(upper, (4, 1)))


def test_a_node_without_width_keeps_its_share() -> None:
    lower, upper = np.array([0.0, 0.25, 0.0, 0.0]), np.array([1.0, 0.25, 0.0, 1.0])
    drawn = sample_uniform(lower, upper, 2000, np.random.default_rng(SEED))
    assert (drawn[:, 1] == 0.25).all()
    assert (drawn[:, 2] == 0.0).all()
    assert stats.kstest(drawn[:, 0] / 0.75, stats.uniform.cdf).pvalue > LEAST_P


def test_projection_moves_every_free_share_by_the_same() -> None:
    lower, upper = np.array([0.0, 0.0, 0.1]), np.array([0.5, 1.0, 1.0])
    assert nearest_point(np.array([0.2, 0.3, 0.4]), lower, upper) == pytest.approx(
        np.array([0.2, 0.3, 0.4]) + 0.1 / 3
    )
    assert nearest_point(np.array([9.0, 0.0, 0.0]), lower, upper) == pytest.approx(
        np.array([0.5, 0.25, 0.25])
    )
