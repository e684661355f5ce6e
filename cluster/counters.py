"""Reads the counters that a plan needs from a replica's /metrics, under its engine's names.

Pure: any thread.
"""

from collections import defaultdict
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from cluster.engines import HEARTH, Engine
from cluster.errors import MetricsUnread

MAX_COUNT = 1e15
GAUGES = ("running", "waiting")  # present from the start, unlike counters with labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Requests that ended, their tokens, and sums and counts of their latencies."""

    ended: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    ttft_s: float = 0.0
    ttft_count: float = 0.0
    itl_s: float = 0.0
    itl_count: float = 0.0


@dataclass(frozen=True, slots=True)
class Counters(Counted):
    """One replica's totals since it started. `running` and `waiting` are current values."""

    at_s: float
    running: float = 0.0
    waiting: float = 0.0

    @property
    def present(self) -> float:
        return self.running + self.waiting


def parse_counters(text: str, at_s: float, engine: Engine = HEARTH) -> Counters:
    """Returns the counters of a page in Prometheus' text format. To save time, skips other metrics,
    about a hundred lines of a page. Raises MetricsUnread."""
    wanted = tuple({name for names in engine.metrics.values() for name in names})
    lines = "\n".join(line for line in text.split("\n") if line.startswith(wanted))
    totals: dict[str, float] = defaultdict(float)
    try:
        for family in text_string_to_metric_families(lines + "\n"):
            for sample in family.samples:
                totals[sample.name] += sample.value
    except (ValueError, IndexError, KeyError) as error:
        raise MetricsUnread(f"the page is not in Prometheus' text format ({error})"[:300]) from None
    found = {
        field: next((totals[name] for name in names if name in totals), None)
        for field, names in engine.metrics.items()
    }
    if missing := [engine.metrics[field] for field in GAUGES if found.get(field) is None]:
        raise MetricsUnread(
            f"the page has none of {', '.join(missing[0])}; is it the page of this engine?"
        )
    sound = {field: value for field, value in found.items() if value is not None}
    if wrong := [field for field, value in sound.items() if not 0 <= value <= MAX_COUNT]:
        raise MetricsUnread(f"{wrong[0]} is {sound[wrong[0]]}, not between 0 and {MAX_COUNT:g}")
    return Counters(at_s, **_not_counted(engine, sound) | sound)


def _not_counted(engine: Engine, sound: dict[str, float]) -> dict[str, float]:
    """Returns the counters that the engine does not have, estimated from its tokens."""
    tokens = sound.get("completion_tokens", 0.0)
    ended = sound.get("ended", 0.0)
    if "ended" not in engine.metrics:
        ended = tokens / engine.answer_tokens
    derived = {"ended": ended, "ttft_count": ended, "itl_count": tokens}
    return {name: value for name, value in derived.items() if name not in engine.metrics}
