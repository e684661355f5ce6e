"""How often drafted tokens are accepted. Decode thread only."""

from dataclasses import dataclass

# The prior: this likely, with the weight of this many trials.
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
    """Acceptance rates by the strength of drafts, of a draft's first token and of a token after an
    accepted one. Neither depends on how deep drafts were tried."""

    def __init__(self, memory: float, prior: "AcceptanceRates | None" = None) -> None:
        """`memory`: the weight of a draft once there is a newer one; `prior`: rates of all rows."""
        self._memory = memory
        self._prior = prior
        self._rates: dict[int, tuple[Rate, Rate]] = {}  # first and later, by strength

    def likelihoods(self, strength: int) -> tuple[float, float]:
        """The likelihood that a draft's first token is accepted, and one whose parent was."""
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
