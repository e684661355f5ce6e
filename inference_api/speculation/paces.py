"""Decides by measured time whether drafts are faster than none. Decode thread only.

The cost of a step and the likelihood of a guess are estimates. The total effect, with the time to
draft and to wake the threads that wait for tokens, can only be measured.
"""

from dataclasses import dataclass

TRIAL_TURNS = 4  # turns of the slower way that a trial takes, one after another
AWAKE_TURNS = 4  # without drafts after a trial, to learn from
REGRET_SHARE = 0.005  # share of the time that trials may cost
FIRST_LOSS = 0.01  # assumed for a trial's turn while nothing is known,
LEAST_LOSS = 0.05  # the least later, lest trials are all there is,
MOST_LOSS = 0.2  # and the most, lest there are none
MARGIN = 0.01  # how much slower drafts may seem: a smaller loss is hard to measure
RATE = 1 / 64  # how fast the pace of the faster way is learned,
TRIAL_RATE = 1 / 12  # and that of the slower one, which is seldom seen
FIRST_TURNS = 8  # turns of each way before one is given up
MAX_MISS = 2.0  # a turn that took longer by this than plain ones for as much was held up


@dataclass(slots=True)
class _Pace:
    """How long turns of one way took, and what they brought, both in plain turns."""

    relative_s: float = 0.0
    brought: float = 0.0
    num_turns: int = 0

    def learn(self, relative_s: float, brought: float, rate: float) -> None:
        relative_s = min(relative_s, MAX_MISS * brought)
        self.num_turns += 1
        rate = max(rate, 1 / self.num_turns)
        self.relative_s += rate * (relative_s - self.relative_s)
        self.brought += rate * (brought - self.brought)

    @property
    def ratio(self) -> float:
        """Time divided by what it brought: less is faster."""
        return self.relative_s / self.brought


class Paces:
    """The two ways at about one number of rows. The slower one is tried as often as its loss is
    within a share of the time: what a trial costs is earned before."""

    def __init__(self) -> None:
        self._drafting, self._plain = _Pace(), _Pace()
        self.prefers_drafts = True
        self._trial_turns = 0  # left
        self._budget = 0.0  # turns that may be lost

    def take_turn(self) -> bool:
        """Returns whether the next turn is to draft."""
        if not self._trial_turns:
            self._budget += REGRET_SHARE
            if self._budget < TRIAL_TURNS * self._loss():
                return self.prefers_drafts
            self._budget, self._trial_turns = 0.0, TRIAL_TURNS
        self._trial_turns -= 1
        return not self.prefers_drafts

    def turns_until_trial(self) -> int:
        """How many turns from the next one on are without drafts for sure and need not be learned
        from."""
        if self.prefers_drafts or self._trial_turns or self._budget < AWAKE_TURNS * REGRET_SHARE:
            return 0
        return max(int((TRIAL_TURNS * self._loss() - self._budget) / REGRET_SHARE), 0)

    def rest(self, num_turns: int) -> None:
        """So many turns are taken without drafts, and without being asked about or learned
        from."""
        self._budget += num_turns * REGRET_SHARE

    def learn(self, was_drafting: bool, relative_s: float, brought: float) -> None:
        """A turn took so long, and brought what as many plain ones are believed to bring."""
        pace = self._drafting if was_drafting else self._plain
        is_trial = was_drafting != self.prefers_drafts
        pace.learn(relative_s, brought, TRIAL_RATE if is_trial else RATE)
        if self._are_known:
            most = self._plain.ratio * (1 + MARGIN)
            self.prefers_drafts = self._drafting.ratio <= most

    @property
    def _are_known(self) -> bool:
        return min(self._drafting.num_turns, self._plain.num_turns) >= FIRST_TURNS

    def _loss(self) -> float:
        """What a turn of the slower way costs, in turns of the other."""
        if not self._are_known:
            return FIRST_LOSS
        slower, faster = self._drafting.ratio, self._plain.ratio
        if self.prefers_drafts:
            slower, faster = faster, slower
        return min(max(slower / faster - 1, LEAST_LOSS), MOST_LOSS)
