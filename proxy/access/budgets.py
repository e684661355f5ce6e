"""A team's budgets for a day, which ends at midnight UTC. Pure; `limits` does the counting.

Spending is counted by day and team, not by bound, so that after an edit of the budget the day's
spending so far still counts.
"""

from dataclasses import dataclass
from math import ceil

from proxy.access.policy import NANOS, TeamPolicy
from proxy.errors import Headers

DAY_S = 86_400
# A day's count is kept longer, because proxies that share it may have different clocks.
KEPT_S = DAY_S + 3600


@dataclass(frozen=True, slots=True)
class Day:
    """A UTC day, and the seconds left of it."""

    number: int
    left_s: int

    @classmethod
    def at(cls, now_s: float) -> "Day":
        number = int(now_s // DAY_S)
        return cls(number, ceil((number + 1) * DAY_S - now_s))


@dataclass(frozen=True, slots=True)
class DayBudget:
    """`bound` is the policy's `{unit}_per_day`. A unit is counted as `num_parts` whole parts."""

    unit: str
    bound: float
    num_parts: int = 1

    def key(self, team_id: str, day: Day) -> str:
        return f"hearth-{self.unit}-per-day/{day.number}/{team_id}"

    def headers(self, spent: float, day: Day) -> Headers:
        unit = f"{self.unit.capitalize()}-Day"
        return [
            (f"X-RateLimit-Limit-{unit}", _plain(self.bound)),
            (f"X-RateLimit-Remaining-{unit}", _plain(max(0, self.bound - spent))),
            (f"X-RateLimit-Reset-{unit}", str(day.left_s)),
        ]

    def refusal(self, team_id: str, spent: float, day: Day) -> str:
        field = f"{self.unit}_per_day"
        return (
            f"Team '{team_id}' has spent {_plain(spent)} of its {field}={_plain(self.bound)}. Try "
            f"again in {day.left_s} s, when the day ends (UTC), or have {field} raised."
        )


def budgets_of(policy: TeamPolicy) -> list[DayBudget]:
    if policy.tokens_per_day is None and policy.cost_per_day is None:
        return []
    bounds = [("tokens", policy.tokens_per_day, 1), ("cost", policy.cost_per_day, NANOS)]
    return [DayBudget(unit, bound, parts) for unit, bound, parts in bounds if bound is not None]


def _plain(number: float) -> str:
    """Formats an amount without an exponent, however small it is."""
    return f"{number:.9f}".rstrip("0").rstrip(".")
