"""Runs a search: asks, applies, measures and tells until further trials do not pay. One thread.

It reports progress as lines of JSON: one for each trial, and a last one for the result.
"""

import json
import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from weights.drivers import Driver, Ring
from weights.errors import EngineUnusable, SessionNotFound, TrialFailed
from weights.partition import Layers, layers_of
from weights.search import Observation, Problem
from weights.service import WeightsService

MAX_FAILURES = 3  # consecutive failed trials, after which splits cannot be the cause
MAX_ASKS = 16

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Search:
    """A session of the service that is about one ring."""

    service: WeightsService
    session_id: str
    ring: Ring
    min_layers: int = 1

    @property
    def problem(self) -> Problem:
        num_layers = self.ring.num_layers
        return Problem(
            min_weightings=(self.min_layers / num_layers,) * len(self.ring.nodes),
            max_weightings=tuple(most / num_layers for most in self.ring.max_layers),
            num_layers=num_layers,
        )

    def check(self) -> None:
        """Raises EngineUnusable if the nodes together cannot hold the model."""
        ring, least = self.ring, self.min_layers
        if not 2 <= len(ring.nodes) <= ring.num_layers:
            raise EngineUnusable(
                f"{len(ring.nodes)} nodes for {ring.num_layers} layers; a split needs 2 to as many "
                "nodes as there are layers"
            )
        for node, most in zip(ring.nodes, ring.max_layers, strict=True):
            if most < least:
                raise EngineUnusable(
                    f"{node} has room for {most} layers and must take {least}; free memory there, "
                    "or leave it out"
                )
        if sum(ring.max_layers) < ring.num_layers or least * len(ring.nodes) > ring.num_layers:
            raise EngineUnusable(
                f"the nodes have room for {', '.join(map(str, ring.max_layers))} layers, at least "
                f"{least} each, of a model of {ring.num_layers}; free memory or use another model"
            )

    def ask(self, failed: AbstractSet[Layers]) -> tuple[Layers, str] | None:
        """Returns a split that has not failed and the model that proposes it; None without one."""
        for _ in range(MAX_ASKS):
            (proposal,) = self.service.ask(self.session_id, self.problem, count=1, seed=None)
            layers = layers_of(proposal.shares, self.problem)
            if layers not in failed:
                return layers, proposal.model
        return None

    def tell(self, layers: Layers, tokens_per_s: float) -> None:
        shares = tuple(count / self.ring.num_layers for count in layers)
        self.service.tell(self.session_id, self.problem, [Observation(shares, tokens_per_s)])

    def is_over(self) -> bool:
        """Returns whether more trials would not pay."""
        try:
            session = self.service.find(self.session_id)
        except SessionNotFound:
            return False
        return self.service.assess(session).convergence.converged


def drive(driver: Driver, search: Search, max_trials: int, report: Report) -> Layers:
    """Search, and leave the engine with the best split, accounting for noise. Returns that split.
    Raises EngineUnusable, and TrialFailed after several failures in a row."""
    search.check()
    num_failed = 0
    failed: set[Layers] = set()
    for trial in range(1, max_trials + 1):
        proposal = search.ask(failed)  # also checks that the session belongs to this ring
        if proposal is None or search.is_over():
            break
        layers, model = proposal
        shown = {"trial": trial, "layers": layers, "proposed_by": model}
        try:
            tokens_per_s = driver.measure(layers)
        except TrialFailed as error:
            report(json.dumps(shown | {"failed": str(error)}))
            failed.add(layers)
            num_failed += 1
            if num_failed == MAX_FAILURES:
                raise
            continue
        num_failed = 0
        search.tell(layers, tokens_per_s)
        report(json.dumps(shown | {"tokens_per_s": tokens_per_s}))
    return _finish(driver, search, report)


def _finish(driver: Driver, search: Search, report: Report) -> Layers:
    """Tell the best split with its interval and its setting. Returns the split."""
    assessment = search.service.assess(search.service.find(search.session_id))
    best, convergence = assessment.best, assessment.convergence
    layers = layers_of(best.shares, search.problem)
    interval = [end if math.isfinite(end) else None for end in (best.low, best.high)]
    result = {
        "best": dict(zip(search.ring.nodes, layers, strict=True)),
        "tokens_per_s": best.metric,
        "interval_90": interval,
        "converged": convergence.converged,
        "reason": convergence.reason,
        "setting": driver.finish(layers),
    }
    report(json.dumps(result))
    return layers
