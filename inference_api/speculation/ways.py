"""Decides by measured time how many draft sources to ask. Decode thread only.

The cost of a step and the likelihood of a guess are estimates. The total effect can only be
measured: it includes the time to draft, and to wake threads that wait for tokens.
"""

from dataclasses import dataclass

from inference_api.core.step_costs import MAX_LOOP_RATIO

MARGIN = 0.02  # drafting must be faster by this share, the approximate error of measurements
TRIAL_TURNS = 4  # consecutive turns of a trial of a slower way
TRIAL_SHARE = 0.005  # share of the time that trials of slower ways may cost
RATE = 1 / 64  # learning rate of a way's pace


@dataclass(slots=True)
class Pace:
    """The mean time of one way's turns, and the tokens that they draw, relative to plain turns."""

    relative_s: float = 1.0
    relative_tokens: float = 1.0
    num_turns: int = 0
    next_trial: int = 0  # number of the turn to try this way again, if it is not the fastest

    def learn(self, relative_s: float, relative_tokens: float) -> None:
        relative_s = min(relative_s, MAX_LOOP_RATIO * relative_tokens)  # longer: interrupted
        self.num_turns += 1
        rate = max(RATE, 1 / self.num_turns)
        self.relative_s += rate * (relative_s - self.relative_s)
        self.relative_tokens += rate * (relative_tokens - self.relative_tokens)

    @property
    def ratio(self) -> float:
        """Relative time per token."""
        return self.relative_s / self.relative_tokens


class Ways:
    """The ways to take a turn with about one number of rows: way n asks the first n sources.

    The fastest way is taken. Another way is tried only after enough turns that the loss is a small
    share of their time; in the beginning it is tried sooner. While way 0 is taken, turns between
    trials are not measured, because measuring takes a few percent of a small model's step.
    """

    def __init__(self, num_ways: int) -> None:
        self._paces = [Pace() for _ in range(num_ways)]
        self._fastest = 0
        self._num_turns = 0
        self._trial = 0
        self._trial_turns = 0  # turns left of a trial
        self._watched_until = 0  # number of the turn up to which turns are measured
        self._rest_turns = 0

    def rests(self) -> bool:
        """Count a turn. Returns True if it is not to be measured, and the next asks no source."""
        if not self._rest_turns:
            return False
        self._rest_turns -= 1
        return True

    def next(self) -> int:
        """Returns the way for the next turn."""
        self._num_turns += 1
        if self._trial_turns:
            self._trial_turns -= 1
            return self._trial
        others = [each for each in enumerate(self._paces) if each[0] != self._fastest]
        way, pace = min(others, key=lambda each: each[1].next_trial)
        if pace.next_trial <= self._num_turns:
            self._trial, self._trial_turns = way, TRIAL_TURNS - 1
            self._watched_until = self._num_turns + 2 * TRIAL_TURNS
            pace.next_trial = 2 * self._num_turns  # in case no turn of the trial is learned from
            return way
        if self._fastest == 0 and self._num_turns >= self._watched_until:
            self._rest_turns = pace.next_trial - self._num_turns
            self._num_turns = pace.next_trial
        return self._fastest

    def learn(self, way: int, relative_s: float, relative_tokens: float) -> None:
        """Learn the duration of a turn and the tokens it drew, both relative to plain turns."""
        pace = self._paces[way]
        pace.learn(relative_s, relative_tokens)
        self._fastest, least = 0, self._paces[0].ratio / (1 + MARGIN)
        for number, each in enumerate(self._paces):
            if each.num_turns >= TRIAL_TURNS and each.ratio < least:
                self._fastest, least = number, each.ratio
        loss = max(pace.ratio / self._paces[self._fastest].ratio - 1, MARGIN)
        earning_turns = min(int(TRIAL_TURNS * loss / TRIAL_SHARE), self._num_turns)
        pace.next_trial = self._num_turns + earning_turns
