"""The record of a search in a store, and how updates change it. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from weights.errors import SessionMismatch
from weights.search import Direction, Observation, Problem


@dataclass(frozen=True, slots=True)
class Session:
    """The state of a search without its history. Every update reads and writes it. `problem` has
    the last bounds; `best` is the best single measurement, the earliest among equals."""

    session_id: str
    problem: Problem
    num_observations: int
    best: Observation


@dataclass(frozen=True, slots=True)
class UpdateEffect:
    """The effect of an update."""

    session: Session
    is_first: bool
    is_better: bool


def apply_update(
    session: Session | None, session_id: str, problem: Problem, observations: Sequence[Observation]
) -> UpdateEffect:
    """Returns the session after `observations`, which are not empty. Raises SessionMismatch."""
    best_now = best_of(problem.direction, observations)
    if session is None:
        return UpdateEffect(Session(session_id, problem, len(observations), best_now), True, True)
    check_same(session, problem)
    best = best_of(problem.direction, [session.best, best_now])
    count = session.num_observations + len(observations)
    after = replace(session, problem=problem, num_observations=count, best=best)
    return UpdateEffect(after, False, best is not session.best)


def check_same(session: Session, problem: Problem) -> None:
    """Raises SessionMismatch if the session has other nodes or another direction."""
    old = session.problem
    if (old.number_of_nodes, old.direction) != (problem.number_of_nodes, problem.direction):
        raise SessionMismatch(
            f"session {session.session_id} is about {old.number_of_nodes} nodes ({old.direction}), "
            f"not {problem.number_of_nodes} ({problem.direction}); use another session_id"
        )


def best_of(direction: Direction, observations: Sequence[Observation]) -> Observation:
    pick = max if direction == "maximize" else min
    return pick(observations, key=lambda observation: observation.metric)


def dump_observation(observation: Observation) -> str:
    """Returns a line with the metric, then the shares, in full precision."""
    return json.dumps([observation.metric, *observation.shares], separators=(",", ":"))


def load_observation(line: str) -> Observation:
    metric, *shares = json.loads(line)
    return Observation(tuple(shares), metric)


def dump_problem(problem: Problem) -> str:
    return json.dumps(
        [problem.min_weightings, problem.max_weightings, problem.direction, problem.num_layers],
        separators=(",", ":"),
    )


def load_problem(line: str) -> Problem:
    low, high, direction, num_layers = json.loads(line)
    return Problem(tuple(low), tuple(high), direction, num_layers)
