"""Chains of guesses, for sources that guess one token after another and state probabilities."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from inference_api.core.drafts import Outcome
from inference_api.core.rows import Draft, UserRow
from inference_api.runner import Guess
from inference_api.speculation.calibration import Calibration, Proposed

LEAST_LIKELIHOOD = 0.2  # a chain at least this likely gets another guess


@dataclass(slots=True)
class Chain:
    """Guesses after a row's last token."""

    row: UserRow
    room: int  # how many more guesses fit
    token_ids: list[int] = field(default_factory=list)
    bins: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    likelihoods: list[float] = field(default_factory=list)

    def add(self, guess: Guess, own_bin: int, likelihood: float) -> None:
        """`likelihood` is conditional on the guess before it."""
        of_chain = likelihood * (self.likelihoods[-1] if self.likelihoods else 1.0)
        self.token_ids.append(guess.token_id)
        self.bins.append(own_bin)
        self.probabilities.append(guess.probability)
        self.likelihoods.append(of_chain)
        self.room = self.room - 1 if of_chain >= LEAST_LIKELIHOOD else 0

    @property
    def proposed(self) -> Proposed:
        draft = Draft(self.token_ids, None, self.likelihoods)
        return Proposed(self.row, draft, self.bins, self.probabilities)


class Growth:
    """Extends chains while another step of their source pays, and learns from outcomes."""

    def __init__(self, vocab_size: int, num_depths: int = 1) -> None:
        """`vocab_size` is the target model's. Guesses from depth `num_depths` on are one kind."""
        self._vocab_size = vocab_size
        self._num_depths = num_depths
        # For each depth, one kind for greedy requests and one for requests that sample.
        self._calibration = Calibration(num_kinds=2 * num_depths)

    def extend(self, chains: Sequence[Chain], guesses: Sequence[Guess]) -> list[Chain]:
        """Append each guess to its chain. Returns the chains that are worth another guess."""
        for chain, guess in zip(chains, guesses, strict=True):
            request = chain.row.request
            # Nothing follows a stop token, so guessing one gains nothing.
            if guess.token_id in request.stop_token_ids or guess.token_id >= self._vocab_size:
                chain.room = 0
                continue
            depth = min(len(chain.token_ids), self._num_depths - 1)
            kind = 2 * depth + (not request.params.sampling.is_greedy)
            chain.add(guess, *self._calibration.calibrated(kind, guess.probability))
        return [chain for chain in chains if chain.room > 0]

    def drafts(self, chains: Iterable[Chain]) -> Mapping[int, Draft]:
        """Returns the chains as drafts for the next step, by row index."""
        return self._calibration.drafts(chain.proposed for chain in chains if chain.token_ids)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        self._calibration.learn(outcomes)
