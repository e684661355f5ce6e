"""Chooses the model that best predicts each trial from all other trials."""

from collections.abc import Callable, Sequence

import numpy as np

from weights.samplers.cost_model import Fit
from weights.samplers.linear import fit_bowl, fit_total_time
from weights.samplers.stages import fit_slowest_stage
from weights.samplers.surrogate import Surrogate, fit_surrogate
from weights.samplers.trials import Trials

MARGIN = 3.0  # difference of log evidence: twenty to one
# Number of trials that models are fitted to: the cheapest and the newest. The cheapest alone would
# mislead, because with noise they are the lucky ones.
MAX_TRIALS = 256
NEAR_TRIALS = 128  # trials to which a surrogate is fitted for proposals

STRUCTURES: Sequence[Callable[[Trials, np.random.Generator], Fit]] = (
    fit_slowest_stage,
    fit_total_time,
    fit_bowl,
)


def most_trusted(trials: Trials, rng: np.random.Generator) -> Fit:
    """Returns the first fit that no other clearly beats. Tries structured models only for metrics
    of one sign, because others are not times."""
    telling = trials.most_telling(MAX_TRIALS)
    fits: list[Fit] = [fit(telling, rng) for fit in STRUCTURES] if trials.scale.is_log else []
    fits.append(fit_surrogate(telling, rng))
    return next(fit for fit in fits if not any(clearly_beats(other, fit) for other in fits))


def guide(trials: Trials, rng: np.random.Generator) -> Fit:
    """Returns the model for proposals, which is the most trusted one. A surrogate is fitted again
    without most of the bad trials: it is equally smooth everywhere, so they would blur differences
    among good shares. This favours lucky trials, which costs at most a trial, because the best
    shares are judged by all trials."""
    fit = most_trusted(trials, rng)
    if isinstance(fit, Surrogate) and len(trials) > NEAR_TRIALS:
        return fit_surrogate(trials.most_telling(NEAR_TRIALS), rng)
    return fit


def clearly_beats(other: Fit, fit: Fit) -> bool:
    """Returns whether `other` has more evidence, by over MARGIN and two standard errors."""
    difference = other.evidence - fit.evidence
    error = np.sqrt(len(difference)) * float(difference.std())
    return bool(difference.sum() > max(MARGIN, 2.0 * error))
