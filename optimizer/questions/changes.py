"""Finds what would change the answer to "how many": prices, load, levels, precision.

Pure, except for the sizing cache: any thread.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from common.wire import WireDict
from optimizer.answer import shortest
from optimizer.candidates.replicas import SizingCache
from optimizer.catalogue.facts import Precision
from optimizer.catalogue.options import CardMarket, RequestDemand, options
from optimizer.questions.sized import Sized, cheapest

BUSIER = 2.0
TIGHTER = 0.5
BINDS = {
    "slo-itl": "inter-token latency binds",
    "slo-ttft": "time to first token binds",
    "capacity": "no level binds, a replica is full before it is slow",
}


class Change(WireDict):
    """A change, with the option that would then be cheapest; null if there is none."""

    what: str
    text: str
    accelerator: str | None
    cards: int | None
    cost: float | None


def changes(
    demand: RequestDemand, market: CardMarket, best: Sequence[Sized], cache: SizingCache
) -> Iterator[Change]:
    """Yields the changes, given at least one of the answer's choices, cheapest first."""
    first = best[0]
    yield _change("binds", _binding(demand, first), first)
    yield _change("replica", _next_replica(demand, first), first)
    if len(best) > 1:
        yield _change("price", _price(first, best[1]), best[1])
        if close := _undecided(best):
            yield _change("measure", close, best[1])
    yield _busier(demand, best)
    for what, condition, changed in _other_demands(demand):
        same = changed.precision is demand.precision  # measurements hold only for this precision
        others = market if same else replace(market, measured={})
        found = cheapest(changed, options(changed, others)[0], others.max_cards, cache)
        offer = _offer(found, found.candidate.replicas) if found else "none of them would do."
        yield _change(what, f"{condition}: {offer}", found)


def _change(what: str, text: str, sized: Sized | None, cards: int | None = None) -> Change:
    if sized is None:
        return {"what": what, "text": text, "accelerator": None, "cards": None, "cost": None}
    cards = sized.cards if cards is None else cards
    machine = sized.option.machine
    return {
        "what": what,
        "text": text,
        "accelerator": machine.accelerator.name,
        "cards": cards,
        "cost": shortest(sized.option.cents / machine.cards * cards),
    }


def _binding(demand: RequestDemand, first: Sized) -> str:
    levels = " and ".join(
        f"{name} of {ms:g} ms"
        for name, ms in (("TTFT", demand.ttft_ms), ("ITL", demand.itl_ms))
        if ms
    )
    return (
        f"On {first.option.name} {BINDS[first.bind]}. It takes "
        f"{first.candidate.max_rate_per_s:.3g} requests/s{levels and f' within {levels}'}."
    )


def _next_replica(demand: RequestDemand, first: Sized) -> str:
    replicas, most = first.candidate.replicas, first.candidate.max_rate_per_s
    fewer = f"; below {most * (replicas - 1):.3g} one fewer" if replicas > 1 else ""
    return (
        f"{_counted(replicas)} of {first.option.name} can take up to {most * replicas:.3g} "
        f"requests/s; above it one more is needed{fewer}. Asked for: {demand.rate_per_s:.3g}."
    )


def _price(first: Sized, second: Sized) -> str:
    price = first.cents / second.cards
    now = second.option.cents / second.option.machine.cards
    name = second.option.accelerator
    return f"{name} is cheapest below ${price / 100:.3g} a card and hour; now ${now / 100:.3g}."


def _undecided(best: Sequence[Sized]) -> str | None:
    """Returns a warning if the errors of speeds allow another order."""
    high = best[0].cents_bounds[1]
    names = [each.option.accelerator for each in best[1:] if each.cents_bounds[0] < high]
    if not names:
        return None
    first = best[0].option.accelerator
    return (
        f"Within the errors of their speeds {', '.join(names)} may be cheaper than {first}: "
        "measure before you choose."
    )


def _busier(demand: RequestDemand, best: Sequence[Sized]) -> Change:
    rate = BUSIER * demand.rate_per_s
    each = min(best, key=lambda each: each.replicas_at(rate) * each.option.cents)
    replicas = each.replicas_at(rate)
    text = f"At twice the load, {rate:.3g} requests/s: {_offer(each, replicas)}"
    return _change("rate", text, each, replicas * each.option.machine.cards)


def _other_demands(demand: RequestDemand) -> Iterator[tuple[str, str, RequestDemand]]:
    """Yields demands, each with its name and the condition that it stands for."""
    itl_ms, ttft_ms = TIGHTER * demand.itl_ms, TIGHTER * demand.ttft_ms
    if itl_ms:
        yield "slo-itl", f"At half the ITL, {itl_ms:g} ms", replace(demand, itl_ms=itl_ms)
    if ttft_ms:
        yield "slo-ttft", f"At half the TTFT, {ttft_ms:g} ms", replace(demand, ttft_ms=ttft_ms)
    if demand.precision is Precision.BF16:
        yield "precision", "With weights in fp8", replace(demand, precision=Precision.FP8)


def _offer(each: Sized, replicas: int) -> str:
    cost = replicas * each.option.cents / 100
    return f"{_counted(replicas)} of {each.option.name} for ${cost:.4g} an hour."


def _counted(replicas: int) -> str:
    return f"{replicas} replica{'s' if replicas != 1 else ''}"
