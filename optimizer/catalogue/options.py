"""Lists the replicas that could be rented for a demand: one or several cards of a type.

Pure: any thread.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

from optimizer.catalogue.calibration import Calibration
from optimizer.catalogue.facts import AcceleratorFacts, ModelFacts, Precision
from optimizer.catalogue.roofline import Machine
from optimizer.catalogue.speeds import Speed, measured_speed, published_speed
from optimizer.spec import PerfData

CARDS_PER_REPLICA = (1, 2, 4, 8)
OPTIONS_EACH = 2  # numbers of cards per replica that are sized for one accelerator


@dataclass(frozen=True, slots=True)
class RequestDemand:
    """Requests per second of one shape, and their service levels; 0 ms means none."""

    model: ModelFacts
    precision: Precision
    rate_per_s: float
    in_tokens: int
    out_tokens: int
    ttft_ms: float
    itl_ms: float

    @property
    def tokens(self) -> int:
        return self.in_tokens + self.out_tokens


@dataclass(frozen=True, slots=True)
class CardMarket:
    """The cards on offer. `cents` per card and hour; `measured` has keys (accelerator, cards)."""

    calibration: Calibration
    accelerators: Sequence[AcceleratorFacts]
    cents: Mapping[str, float]
    measured: Mapping[tuple[str, int], PerfData]
    max_cards: int | None


@dataclass(frozen=True, slots=True)
class Option:
    """A replica: some cards of a type, and how fast they are."""

    name: str
    speed: Speed
    cents: float

    @property
    def machine(self) -> Machine:
        return self.speed.machine

    @property
    def accelerator(self) -> str:
        return self.machine.accelerator.name

    def lowest_cost(self, demand: RequestDemand) -> float:
        """Returns the cost in cents an hour without queueing; infinite if ITL is missed even so."""
        tokens = demand.in_tokens / demand.out_tokens
        rates = [
            1000 * rows / (demand.out_tokens * (step_ms + rows * tokens * token_ms))
            for rows, step_ms, token_ms in self.speed.steps()
            if not demand.itl_ms or step_ms + (rows - 1) * tokens * token_ms <= demand.itl_ms
        ]
        if not rates:
            return inf
        return self.cents * ceil(demand.rate_per_s / max(rates))

    def rank(self, demand: RequestDemand) -> tuple[float, int]:
        """Returns a sort key. If no option meets the ITL, the one with most cards comes nearest."""
        cost, cards = self.lowest_cost(demand), self.machine.cards
        return cost, cards if cost < inf else -cards


def options(demand: RequestDemand, market: CardMarket) -> tuple[list[Option], dict[str, str]]:
    """Returns the options to size, and the reason for each accelerator that has none."""
    found: list[Option] = []
    refused: dict[str, str] = {}
    for accelerator in market.accelerators:
        if accelerator.name not in market.cents:
            refused[accelerator.name] = "it has no price in the catalogue; give one"
            continue
        each = list(_options_with(demand, market, accelerator))
        if not each:
            refused[accelerator.name] = _no_room(demand, market, accelerator)
        found += sorted(each, key=lambda option: option.rank(demand))[:OPTIONS_EACH]
    return found, refused


def _options_with(
    demand: RequestDemand, market: CardMarket, accelerator: AcceleratorFacts
) -> Iterator[Option]:
    """Yields an accelerator's options. Measured speeds replace all of its published ones."""
    is_measured = any(name == accelerator.name for name, _ in market.measured)
    for cards in CARDS_PER_REPLICA:
        if cards > demand.model.kv_heads or cards > (market.max_cards or cards):
            continue
        machine = Machine(demand.model, accelerator, cards, demand.precision)
        name = accelerator.name if cards == 1 else f"{cards}x{accelerator.name}"
        shape = demand.in_tokens, demand.out_tokens
        perf = market.measured.get((accelerator.name, cards))
        speed: Speed | None = None
        if perf is not None:
            speed = measured_speed(machine, perf, *shape, name)
        elif not is_measured:
            speed = published_speed(market.calibration, machine, *shape, name)
        if speed is not None:
            yield Option(name, speed, market.cents[accelerator.name] * cards)


def _no_room(demand: RequestDemand, market: CardMarket, accelerator: AcceleratorFacts) -> str:
    allowed = [
        c for c in CARDS_PER_REPLICA if c <= min(demand.model.kv_heads, market.max_cards or c)
    ]
    machine = Machine(demand.model, accelerator, max(allowed, default=1), demand.precision)
    needed = machine.weights_bytes + machine.cache_bytes(demand.tokens)
    return (
        f"{needed / 1e9:.3g} GB of weights and one request do not fit into the "
        f"{machine.memory_bytes / 1e9:.3g} GB that {machine.cards} of them leave"
    )
