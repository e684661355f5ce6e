"""Chains of guesses, for draft sources that guess token by token and know probabilities."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from inference_api.core.drafts import Outcome
from inference_api.core.rows import Draft, UserRow
from inference_api.runner import Guess
from inference_api.speculation.calibration import Calibration, ProposedDraft

LEAST_LIKELIHOOD = 0.2  # a chain gets another guess only if it is at least this likely


@dataclass(slots=True)
class Chain:
    """Guesses after a row's last token."""

    row: UserRow
    room: int  # how many more guesses fit
    token_ids: list[int] = field(default_factory=list)
    bins: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    likelihoods: list[float] = field(default_factory=list)

    def add(self, guess: Guess, guess_bin: int, likelihood: float) -> None:
        """Append a guess. Its `likelihood` is conditional on the guess before it being right."""
        of_chain = likelihood * (self.likelihoods[-1] if self.likelihoods else 1.0)
        self.token_ids.append(guess.token_id)
        self.bins.append(guess_bin)
        self.probabilities.append(guess.probability)
        self.likelihoods.append(of_chain)
        self.room = self.room - 1 if of_chain >= LEAST_LIKELIHOOD else 0

    @property
    def proposed(self) -> ProposedDraft:
        draft = Draft(self.token_ids, None, self.likelihoods)
        return ProposedDraft(self.row, draft, self.bins, self.probabilities)


class ChainDrafts:
    """Base class of draft sources that guess chains: extends them while they are likely enough, and
    learns from outcomes."""

    def __init__(self, vocab_size: int, num_depths: int = 1) -> None:
        """`vocab_size` is the target model's. Each of `num_depths` depths is calibrated apart."""
        self._vocab_size = vocab_size
        self._num_depths = num_depths
        # For each depth, one kind for greedy requests and one for requests that sample.
        self._calibration = Calibration(num_kinds=2 * num_depths)

    def extend(self, chains: Sequence[Chain], guesses: Sequence[Guess]) -> list[Chain]:
        """Append each guess to its chain. Returns the chains that are worth another guess."""
        for chain, guess in zip(chains, guesses, strict=True):
            request = chain.row.request
            # No token follows a stop token, so guessing it gains nothing.
            if guess.token_id in request.stop_token_ids or guess.token_id >= self._vocab_size:
                chain.room = 0
                continue
            depth = min(len(chain.token_ids), self._num_depths - 1)
            kind = 2 * depth + (not request.params.sampling.is_greedy)
            chain.add(guess, *self._calibration.calibrated(kind, guess.probability))
        return [chain for chain in chains if chain.room > 0]

    def drafts_of(self, chains: Iterable[Chain]) -> Mapping[int, Draft]:
        """Returns the chains as drafts for the next step, by row index."""
        return self._calibration.drafts(chain.proposed for chain in chains if chain.token_ids)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        self._calibration.learn(outcomes)
