"""Policies of teams: a YAML file of limits, models, roles and prices, with defaults.

    defaults: {requests_per_minute: 600, max_concurrent: 32}
    teams:
      research: {tokens_per_minute: 200000, models: [hearth-tiny]}
      platform: {role: operator}
    prices:
      hearth-tiny: {prompt_per_million: 0.1, completion_per_million: 0.4}

A team's entry overrides the defaults key by key. `null` means no limit.
"""

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from proxy.access.roles import Role
from proxy.files import Entry, read_yaml, validated

Limit = Annotated[int, Field(ge=1, le=10**15)] | None
DayCost = Annotated[float, Field(gt=0, le=10**9)] | None
PerMillion = Annotated[float, Field(ge=0, le=10_000)]
NANOS = 10**9  # costs are counted in whole billionths of the currency
ANY_MODEL = "*"


class TeamPolicy(Entry):
    """A team's rights. None means unlimited, any model, or the role that its tokens claim."""

    requests_per_minute: Limit = None
    tokens_per_minute: Limit = None
    tokens_per_day: Limit = None
    cost_per_day: DayCost = None
    max_concurrent: Limit = None
    models: frozenset[str] | None = None
    role: Literal["team", "viewer", "operator"] | None = None

    @cached_property
    def has_limits(self) -> bool:
        limits = (self.requests_per_minute, self.tokens_per_minute, self.tokens_per_day)
        return any(limits) or self.cost_per_day is not None or self.max_concurrent is not None

    def role_of(self, claimed: Role) -> Role:
        """Returns the role in the file, which overrides tokens, or else the token's."""
        return claimed if self.role is None else Role.named(self.role)


class TokenPrice(Entry):
    """The prices of a model's tokens."""

    prompt_per_million: PerMillion
    completion_per_million: PerMillion

    def cost_nanos(self, prompt_tokens: int, completion_tokens: int) -> int:
        per_million = (
            prompt_tokens * self.prompt_per_million
            + completion_tokens * self.completion_per_million
        )
        return round(per_million * NANOS / 10**6)


class Policy(Entry):
    """The whole file."""

    defaults: TeamPolicy = TeamPolicy()
    teams: dict[str, TeamPolicy] = Field(default_factory=dict)
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = "USD"
    prices: dict[str, TokenPrice] = Field(default_factory=dict)

    def for_team(self, team_id: str) -> TeamPolicy:
        return self.teams.get(team_id, self.defaults)

    def price_of(self, model: str | None) -> TokenPrice | None:
        return self.prices.get(model or ANY_MODEL) or self.prices.get(ANY_MODEL)


def parse_policy(text: str) -> Policy:
    """Returns the policies in a file's content. Raises ValueError that names every faulty entry."""
    document = read_yaml(text) or {}
    if not isinstance(document, dict):
        raise ValueError("expected a mapping with 'defaults' and 'teams'")
    policy = validated(Policy, _with_defaults(document))
    has_budget = any(each.cost_per_day for each in (policy.defaults, *policy.teams.values()))
    if has_budget and ANY_MODEL not in policy.prices:
        # A name without a price would bypass the budget.
        raise ValueError("cost_per_day needs prices['*'], for models without a price of their own")
    return policy


def _with_defaults(document: dict[str, Any]) -> dict[str, Any]:
    defaults, teams = document.get("defaults") or {}, document.get("teams") or {}
    if not isinstance(defaults, dict) or not isinstance(teams, dict):
        raise ValueError("'defaults' and 'teams' must be mappings")
    merged = {
        team_id: {**defaults, **entry} if isinstance(entry, dict) else entry or defaults
        for team_id, entry in teams.items()
    }
    return {**document, "defaults": defaults, "teams": merged}
