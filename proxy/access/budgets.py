"""A team's budgets for a day, which begins and ends at midnight UTC. Pure; `limits` counts.

What is spent is counted under the day and the team, not under the bound: an edited budget knows
what the day has cost so far.
"""

from dataclasses import dataclass
from math import ceil

from proxy.access.policy import TeamPolicy
from proxy.errors import Headers

DAY_S = 86_400
# A day's count is kept for longer, as the proxies that share it may have different clocks.
KEPT_S = DAY_S + 3600


@dataclass(frozen=True, slots=True)
class Day:
    """A day of UTC, and the seconds that are left of it."""

    number: int
    left_s: int

    @classmethod
    def at(cls, now_s: float) -> "Day":
        number = int(now_s // DAY_S)
        return cls(number, ceil((number + 1) * DAY_S - now_s))


@dataclass(frozen=True, slots=True)
class DayBudget:
    """`bound` is of the policy's field `{unit}_per_day`."""

    unit: str
    bound: int

    def key(self, team_id: str, day: Day) -> str:
        return f"hearth-{self.unit}-per-day/{day.number}/{team_id}"

    def headers(self, num_spent: int, day: Day) -> Headers:
        unit = f"{self.unit.capitalize()}-Day"
        return [
            (f"X-RateLimit-Limit-{unit}", str(self.bound)),
            (f"X-RateLimit-Remaining-{unit}", str(max(0, self.bound - num_spent))),
            (f"X-RateLimit-Reset-{unit}", str(day.left_s)),
        ]

    def refusal(self, team_id: str, num_spent: int, day: Day) -> str:
        field = f"{self.unit}_per_day"
        return (
            f"Team '{team_id}' has spent {num_spent} of its {field}={self.bound}. Try again in "
            f"{day.left_s} s, when the day ends (UTC), or have {field} raised."
        )


def budgets_of(policy: TeamPolicy) -> list[DayBudget]:
    bounds = [("tokens", policy.tokens_per_day)]
    return [DayBudget(unit, bound) for unit, bound in bounds if bound is not None]
