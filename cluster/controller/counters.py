"""Reads from a replica's /metrics what a plan needs, by Hearth's names or else by vLLM's.

Pure: any thread.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from cluster.errors import MetricsUnread

# Sample names by field of `Counters`: the first that is there counts, summed over its labels.
NAMES = {
    "ended": ("inference_requests_total", "vllm:request_success_total"),
    "prompt_tokens": (
        "inference_prompt_tokens_sum",
        "vllm:request_prompt_tokens_sum",
        "vllm:prompt_tokens_total",
    ),
    "completion_tokens": (
        "inference_completion_tokens_sum",
        "vllm:request_generation_tokens_sum",
        "vllm:generation_tokens_total",
    ),
    "ttft_s": ("inference_time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_sum"),
    "ttft_count": (
        "inference_time_to_first_token_seconds_count",
        "vllm:time_to_first_token_seconds_count",
    ),
    "itl_s": (
        "inference_inter_token_latency_seconds_sum",
        "vllm:inter_token_latency_seconds_sum",
        "vllm:request_time_per_output_token_seconds_sum",
        "vllm:time_per_output_token_seconds_sum",
    ),
    "itl_count": (
        "inference_inter_token_latency_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:request_time_per_output_token_seconds_count",
        "vllm:time_per_output_token_seconds_count",
    ),
    "running": ("inference_rows_busy", "vllm:num_requests_running"),
    "waiting": ("inference_queue_depth", "vllm:num_requests_waiting"),
}
MAX_COUNT = 1e15
GAUGES = ("running", "waiting")  # there from the start, as counters with labels are not
_WANTED = tuple(sorted({name for names in NAMES.values() for name in names}))


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals of one replica since its process started; `running` and `waiting` are current."""

    at_s: float
    ended: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    ttft_s: float = 0.0
    ttft_count: float = 0.0
    itl_s: float = 0.0
    itl_count: float = 0.0
    running: float = 0.0
    waiting: float = 0.0

    @property
    def present(self) -> float:
        return self.running + self.waiting


def parse_counters(text: str, at_s: float) -> Counters:
    """The counters of a page in Prometheus' text format. Raises MetricsUnread.

    Lines of other metrics, about a hundred on a page, are not parsed.
    """
    lines = "\n".join(line for line in text.split("\n") if line.startswith(_WANTED))
    totals: dict[str, float] = defaultdict(float)
    try:
        for family in text_string_to_metric_families(lines + "\n"):
            for sample in family.samples:
                if not math.isnan(sample.value):
                    totals[sample.name] += sample.value
    except (ValueError, IndexError, KeyError) as error:
        raise MetricsUnread(f"the page is not in Prometheus' text format ({error})"[:300]) from None
    found = {
        field: next((totals[name] for name in names if name in totals), None)
        for field, names in NAMES.items()
    }
    if missing := [NAMES[field] for field in GAUGES if found[field] is None]:
        raise MetricsUnread(
            f"the page has none of {', '.join(missing[0])}; is it the page of an API?"
        )
    sound = {field: value for field, value in found.items() if value is not None}
    if wrong := [field for field, value in sound.items() if not 0 <= value <= MAX_COUNT]:
        raise MetricsUnread(f"{wrong[0]} is {sound[wrong[0]]}, not between 0 and {MAX_COUNT:g}")
    return Counters(at_s, **sound)
