"""Goodput: the rate of requests answered within their service levels. Failures are not. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarking.analysis.latency import E2E, ITL, TTFT, Metric
from benchmarking.records import RequestRecord


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper bounds in ms for each request; None means no bound."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def bounds_ms(self) -> dict[Metric, float]:
        bounds = {TTFT: self.ttft_ms, ITL: self.itl_ms, E2E: self.e2e_ms}
        return {metric: bound for metric, bound in bounds.items() if bound is not None}

    def is_met_by(self, record: RequestRecord) -> bool:
        """Returns whether an answer is within every bound. A single token has no ITL to bound."""
        if record.failure is not None:
            return False
        return all(
            value <= bound
            for metric, bound in self.bounds_ms.items()
            for value in metric.values([record])
        )

    def __str__(self) -> str:
        bounds = [f"{metric.name} ≤ {bound:g} ms" for metric, bound in self.bounds_ms.items()]
        return ", ".join(bounds) or "every answer counts"


@dataclass(frozen=True, slots=True)
class Goodput:
    """`requests_per_s` is the rate of good requests; `attainment` is their share, 0 to 1."""

    requests_per_s: float
    attainment: float


def goodput(records: Sequence[RequestRecord], slo: Slo, duration_s: float) -> Goodput:
    good = sum(slo.is_met_by(record) for record in records)
    return Goodput(good / duration_s, good / len(records) if records else 0.0)


def goodput_by_model(
    records: Iterable[RequestRecord], slo: Slo, duration_s: float
) -> dict[str, Goodput]:
    """Returns the goodput of each model, by name. All models' traffic counts as one load."""
    by_model: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        by_model[record.model].append(record)
    return {model: goodput(by_model[model], slo, duration_s) for model in sorted(by_model)}
