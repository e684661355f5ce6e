"""Decides by measured time how many draft sources to ask. Decode thread only.

The cost of a step and the likelihood of a guess are estimates. The total effect, including the time
to draft and to wake threads that wait for tokens, can only be measured.
"""

from dataclasses import dataclass

from inference_api.core.step_costs import MAX_LOOP_RATIO

MARGIN = 0.02  # drafting must be faster by this share, about the precision of measurements
TRIAL_TURNS = 4  # consecutive turns of a trial of a slower way
TRIAL_SHARE = 0.005  # share of time that trials of a slower way may lose
RATE = 1 / 64  # learning rate of a way's pace


@dataclass(slots=True)
class Pace:
    """How long turns of one way take, and the tokens they draw, relative to plain turns."""

    relative_s: float = 1.0
    relative_tokens: float = 1.0
    num_turns: int = 0
    next_trial: int = 0  # number of the turn of its next trial, if this is not the fastest way

    def learn(self, relative_s: float, relative_tokens: float) -> None:
        relative_s = min(relative_s, MAX_LOOP_RATIO * relative_tokens)  # else it was interrupted
        self.num_turns += 1
        rate = max(RATE, 1 / self.num_turns)
        self.relative_s += rate * (relative_s - self.relative_s)
        self.relative_tokens += rate * (relative_tokens - self.relative_tokens)

    @property
    def ratio(self) -> float:
        """Relative time per token."""
        return self.relative_s / self.relative_tokens


class Ways:
    """The ways to take a turn at about one number of rows: way n asks the first n sources.

    The fastest way is taken. A trial of another way comes only after so many turns that its loss is
    a small share of them; in the beginning it comes sooner. While way 0 is taken, turns between
    trials are not measured, because that takes a few percent of a small model's step.
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
        """Count a turn. Returns whether it need not be measured and the next one asks no source."""
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
            pace.next_trial = 2 * self._num_turns  # in case nothing is learned of it
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
