"""Ask, put in place, measure, tell: until further trials stop paying. One thread."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from weights.drivers import Driver, Ring
from weights.errors import EngineUnusable, TrialFailed
from weights.partition import Layers, layers_of
from weights.search import Observation, Problem
from weights.service import WeightsService

MAX_FAILURES = 3  # trials in a row; what fails as often has another cause than the split
MAX_ASKS = 16
HEADER = f"{'trial':>5}  {'layers':<20}{'tokens/s':>10}{'best':>10}  proposed by"

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Search:
    """A session of the service, about one ring."""

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
        """Raises EngineUnusable where the nodes together cannot hold the model."""
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
        """Returns a split that has not failed, and what proposes it; None: it has no other."""
        for _ in range(MAX_ASKS):
            (proposal,) = self.service.ask(self.session_id, self.problem, count=1, seed=None)
            layers = layers_of(proposal.shares, self.problem)
            if layers not in failed:
                return layers, proposal.model
        return None

    def tell(self, layers: Layers, tokens_per_s: float) -> None:
        shares = tuple(count / self.ring.num_layers for count in layers)
        self.service.tell(self.session_id, self.problem, [Observation(shares, tokens_per_s)])


def drive(driver: Driver, search: Search, max_trials: int, tell: Tell) -> Layers:
    """Returns the best split when noise is accounted for. Raises EngineUnusable, and TrialFailed
    after several in a row."""
    search.check()
    tell(HEADER)
    best, num_failed = 0.0, 0
    failed: set[Layers] = set()
    for trial in range(1, max_trials + 1):
        asked = search.ask(failed)
        if asked is None:
            break
        layers, model = asked
        try:
            tokens_per_s = driver.measure(layers)
        except TrialFailed as error:
            tell(f"{trial:>5}  {dashed(layers):<20}{'failed':>10}{best:>10.1f}  {error}")
            failed.add(layers)
            num_failed += 1
            if num_failed == MAX_FAILURES:
                raise
            continue
        num_failed, best = 0, max(best, tokens_per_s)
        search.tell(layers, tokens_per_s)
        tell(f"{trial:>5}  {dashed(layers):<20}{tokens_per_s:>10.1f}{best:>10.1f}  {model}")
        if search.service.overview(search.session_id).assessment.convergence.converged:
            break
    return report(driver, search, tell)


def report(driver: Driver, search: Search, tell: Tell) -> Layers:
    """Tells the best split, how sure that is, and what sets it. Returns it."""
    assessment = search.service.overview(search.session_id).assessment
    best, convergence = assessment.best, assessment.convergence
    layers = layers_of(best.shares, search.problem)
    placed = ", ".join(
        f"{node} {count}" for node, count in zip(search.ring.nodes, layers, strict=True)
    )
    tell(
        f"\nbest: {dashed(layers)} layers ({placed}), {best.metric:.1f} tokens/s "
        f"(90 %: {best.low:.1f} to {best.high:.1f})"
    )
    tell(f"{'converged' if convergence.converged else 'not converged'}: {convergence.reason}")
    tell(driver.settings(layers))
    return layers


def dashed(layers: Sequence[int]) -> str:
    return "-".join(map(str, layers))
