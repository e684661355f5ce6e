"""How often drafted tokens turn out right. Decode thread only."""

from dataclasses import dataclass

# What nothing is known of is taken to be this likely, with the weight of so many trials.
OPTIMISM = 0.6
PRIOR_TRIALS = 2.0


@dataclass(slots=True)
class Rate:
    """A share of trials; earlier ones are forgotten exponentially."""

    hits: float = 0.0
    trials: float = 0.0

    def add(self, hits: int, trials: int, memory: float) -> None:
        self.hits = self.hits * memory + hits
        self.trials = self.trials * memory + trials

    def estimate(self, prior: float) -> float:
        return (self.hits + PRIOR_TRIALS * prior) / (self.trials + PRIOR_TRIALS)


class AcceptanceRates:
    """By the strength of drafts, and by depth: of the first token, and of one after an accepted
    one, which does not depend on how deep drafts were tried."""

    def __init__(self, memory: float, prior: "AcceptanceRates | None" = None) -> None:
        """`memory`: what a draft counts once there is another; `prior`: of all rows together."""
        self._memory = memory
        self._prior = prior
        self._rates: dict[int, tuple[Rate, Rate]] = {}  # by strength

    def likelihoods(self, strength: int) -> tuple[float, float]:
        """That a draft's first token is accepted; that one is whose parent was."""
        first_prior, later_prior = (
            (OPTIMISM, OPTIMISM) if self._prior is None else self._prior.likelihoods(strength)
        )
        if strength not in self._rates:
            return first_prior, later_prior
        first, later = self._rates[strength]
        return first.estimate(first_prior), later.estimate(later_prior)

    def learn(self, strength: int, drafted: int, accepted: int) -> None:
        """A chain of `drafted` tokens was tried, and the first `accepted` of them were right."""
        first, later = self._rates.setdefault(strength, (Rate(), Rate()))
        first.add(min(accepted, 1), 1, self._memory)
        if accepted and drafted > 1:
            later.add(accepted - 1, min(accepted, drafted - 1), self._memory)
        if self._prior is not None:
            self._prior.learn(strength, drafted, accepted)
