"""Decides by measured time how many draft sources to ask. Decode thread only.

The cost of a step and the likelihood of a guess are estimates. The total effect, with the time to
draft and to wake the threads that wait for tokens, can only be measured.
"""

from dataclasses import dataclass

from inference_api.core.step_costs import MAX_LOOP_RATIO

MARGIN = 0.02  # asking has to be faster than asking nobody by this, about what can be measured
TRIAL_TURNS = 4  # turns of a slower way that a trial takes, one after another
TRIAL_SHARE = 0.005  # share of the time that the trials of a slower way may lose
RATE = 1 / 64  # learning rate of a way's pace


@dataclass(slots=True)
class Pace:
    """How long turns of one way took and how many tokens they drew, both in plain turns."""

    relative_s: float = 1.0
    relative_tokens: float = 1.0
    num_turns: int = 0
    next_trial: int = 0  # its turn, if this is not the fastest way

    def learn(self, relative_s: float, relative_tokens: float) -> None:
        relative_s = min(relative_s, MAX_LOOP_RATIO * relative_tokens)  # else it was interrupted
        self.num_turns += 1
        rate = max(RATE, 1 / self.num_turns)
        self.relative_s += rate * (relative_s - self.relative_s)
        self.relative_tokens += rate * (relative_tokens - self.relative_tokens)

    @property
    def ratio(self) -> float:
        """Time per token: less is faster."""
        return self.relative_s / self.relative_tokens


class Ways:
    """The ways to take a turn at about one number of rows: way n asks the first n sources.

    The fastest is taken. A trial of another one has to be earned: it comes after so many turns that
    what it loses is a small share of them, and sooner in the beginning. Between trials nothing is
    measured while nobody is asked: that would take a few percent of a small model's step.
    """

    def __init__(self, num_ways: int) -> None:
        self._paces = [Pace() for _ in range(num_ways)]
        self._fastest = 0
        self._num_turns = 0
        self._trial = 0
        self._trial_turns = 0  # left
        self._watched_until = 0  # the turn, after a trial
        self._rest_turns = 0

    def rests(self) -> bool:
        """Returns whether this turn need not be learned and the next is to ask nobody; counts
        it."""
        if not self._rest_turns:
            return False
        self._rest_turns -= 1
        return True

    def next(self) -> int:
        """Returns the way of another turn."""
        self._num_turns += 1
        if self._trial_turns:
            self._trial_turns -= 1
            return self._trial
        others = [each for each in enumerate(self._paces) if each[0] != self._fastest]
        way, pace = min(others, key=lambda each: each[1].next_trial)
        if pace.next_trial <= self._num_turns:
            self._trial, self._trial_turns = way, TRIAL_TURNS - 1
            self._watched_until = self._num_turns + 2 * TRIAL_TURNS
            pace.next_trial = 2 * self._num_turns  # if nothing is learned of it
            return way
        if self._fastest == 0 and self._num_turns >= self._watched_until:
            self._rest_turns = pace.next_trial - self._num_turns
            self._num_turns = pace.next_trial
        return self._fastest

    def learn(self, way: int, relative_s: float, relative_tokens: float) -> None:
        """A turn took so long and drew so many tokens, both in plain turns."""
        pace = self._paces[way]
        pace.learn(relative_s, relative_tokens)
        self._fastest, least = 0, self._paces[0].ratio / (1 + MARGIN)
        for number, each in enumerate(self._paces):
            if each.num_turns >= TRIAL_TURNS and each.ratio < least:
                self._fastest, least = number, each.ratio
        loss = max(pace.ratio / self._paces[self._fastest].ratio - 1, MARGIN)
        earning_turns = min(int(TRIAL_TURNS * loss / TRIAL_SHARE), self._num_turns)
        pace.next_trial = self._num_turns + earning_turns
