"""The problem and the solution of every solver, and what a solver is.

A solver is pure: it holds no state between calls, reads a clock only for a time limit, and may
be used from any thread. Equal problems give equal answers: ties go to lower cost, then name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from optimizer.spec import SaturationPolicy

MOVE_PENALTY = 0.1  # a change of accelerator adds this share of the costs before and after it


class Candidate(NamedTuple):
    """One accelerator that suffices for one server, with all the replicas that the server needs."""

    accelerator: str  # "" = run nothing
    card_type: str
    replicas: int
    batch: int
    cost: float  # cents per hour, in float32 as the reference rounds it
    value: float  # cost and transition penalty; lower is better
    itl_ms: float
    ttft_ms: float
    utilization: float
    max_rate_per_s: float  # one replica's, within the service levels
    cards_per_replica: int
    cost_per_replica: float
    capped: bool = False  # maxNumReplicas is below what the service levels need
    loss: float = 0.0  # fraction of requests that find the queue full
    row: int = -1  # index in the table of pairs; -1 without traffic

    @property
    def cards(self) -> int:
        return self.replicas * self.cards_per_replica


@dataclass(frozen=True, slots=True)
class Contender:
    """A server with at least one candidate. `candidates` are sorted by value, cost and name."""

    server: str
    priority: int  # 1 is served first
    candidates: tuple[Candidate, ...]
    demand_per_s: float  # requests per second that all its replicas together must serve
    min_replicas: int = 0
    max_replicas: int | None = None
    current_accelerator: str = ""
    current_cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Problem:
    contenders: tuple[Contender, ...]
    cards: Mapping[str, int]  # cards by type; a missing type has none


class SolverChoice(NamedTuple):
    """A candidate with `replicas`: all it needs, or fewer in best effort or as one of the parts."""

    candidate: Candidate
    replicas: int

    @property
    def is_exact(self) -> bool:
        """Whether these are exactly the candidate's replicas, so that its figures hold."""
        return self.replicas == self.candidate.replicas

    @property
    def is_full(self) -> bool:
        return self.replicas >= self.candidate.replicas

    @property
    def cards(self) -> int:
        return self.replicas * self.candidate.cards_per_replica


@dataclass(frozen=True, slots=True)
class Solution:
    """Choices by server; more than one per server only from the heterogeneous solver."""

    choices: Mapping[str, tuple[SolverChoice, ...]]
    unserved: Mapping[str, str] = field(default_factory=dict)  # server -> reason
    solver: str = ""
    notes: tuple[str, ...] = ()  # for the caller: fallbacks, limits reached
    gap: float | None = None  # relative distance to the proven bound, if there is one


@dataclass(frozen=True, slots=True)
class Scarcity:
    """How solvers with limited cards treat servers that do not fit."""

    policy: SaturationPolicy = SaturationPolicy.NONE
    delayed: bool = False  # best effort after all priorities, not after each


Solver = Callable[[Problem], Solution]
"""Returns a solution with every contender in `choices` or, with a reason, in `unserved`. Never
raises."""
