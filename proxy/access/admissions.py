"""Admits requests within their teams' limits. Asks in a thread if Redis may block.

Event loop only.
"""

import asyncio

from proxy.access.limits import Admission, TeamLimits
from proxy.access.policy import TeamPolicy
from proxy.aside import Aside


class Admissions:
    def __init__(self, limits: TeamLimits, aside: Aside) -> None:
        self._limits = limits
        self._aside = aside

    async def admit(self, team_id: str, policy: TeamPolicy) -> Admission:
        """Admits a request. Raises LimitExceeded. A client that leaves meanwhile is not counted."""
        if not self._limits.may_block:
            return self._limits.admit(team_id, policy)
        admitting = self._aside.run(self._limits.admit, team_id, policy)
        try:
            return await asyncio.shield(admitting)
        except asyncio.CancelledError:
            admitting.add_done_callback(self._leave_again)
            raise

    def leave(self, admission: Admission, num_tokens: int, cost_nanos: int = 0) -> None:
        """Ends a request, and charges its team for the tokens it took."""

        def leave() -> None:
            self._limits.leave(admission)
            self._limits.charge(admission, num_tokens, cost_nanos)

        if self._limits.may_block:
            self._aside.run_later(leave)
        else:
            leave()

    def _leave_again(self, admitting: "asyncio.Future[Admission]") -> None:
        if not admitting.cancelled() and admitting.exception() is None:
            self.leave(admitting.result(), 0)
