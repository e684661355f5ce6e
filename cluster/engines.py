"""The engines that a replica may run: their command lines, health paths and metrics, and how their
counters are read. Immutable, pure: any thread.

Names of metrics are from the engines' own documentation, read on 2026-11-28:
vLLM      https://docs.vllm.ai/en/stable/usage/metrics/
SGLang    https://docs.sglang.io/references/production_metrics.html
llama.cpp
https://github.com/ggml-org/llama.cpp/tree/master/tools/server#get-metrics-prometheus-compatible-metrics-exporter
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from cluster.errors import MetricsUnread

MetricNames = Mapping[str, tuple[str, ...]]
"""Sample names by field of `Counters`. The first one on a page is used, summed over its labels."""

PLACES = ("host", "port", "model", "rows", "devices")

_HEARTH = {
    "ended": ("inference_requests_total",),
    "prompt_tokens": ("inference_prompt_tokens_sum",),
    "completion_tokens": ("inference_completion_tokens_sum",),
    "ttft_s": ("inference_time_to_first_token_seconds_sum",),
    "ttft_count": ("inference_time_to_first_token_seconds_count",),
    "itl_s": ("inference_inter_token_latency_seconds_sum",),
    "itl_count": ("inference_inter_token_latency_seconds_count",),
    "running": ("inference_rows_busy",),
    "waiting": ("inference_queue_depth",),
}
_VLLM = {
    "ended": ("vllm:request_success_total",),
    "prompt_tokens": ("vllm:request_prompt_tokens_sum", "vllm:prompt_tokens_total"),
    "completion_tokens": ("vllm:request_generation_tokens_sum", "vllm:generation_tokens_total"),
    "ttft_s": ("vllm:time_to_first_token_seconds_sum",),
    "ttft_count": ("vllm:time_to_first_token_seconds_count",),
    "itl_s": (
        "vllm:inter_token_latency_seconds_sum",
        "vllm:request_time_per_output_token_seconds_sum",
        "vllm:time_per_output_token_seconds_sum",
    ),
    "itl_count": (
        "vllm:inter_token_latency_seconds_count",
        "vllm:request_time_per_output_token_seconds_count",
        "vllm:time_per_output_token_seconds_count",
    ),
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
}
_SGLANG = {
    "ended": ("sglang:num_requests_total",),
    "prompt_tokens": ("sglang:prompt_tokens_total",),
    "completion_tokens": ("sglang:generation_tokens_total",),
    "ttft_s": ("sglang:time_to_first_token_seconds_sum",),
    "ttft_count": ("sglang:time_to_first_token_seconds_count",),
    "itl_s": (
        "sglang:inter_token_latency_seconds_sum",
        "sglang:time_per_output_token_seconds_sum",
    ),
    "itl_count": (
        "sglang:inter_token_latency_seconds_count",
        "sglang:time_per_output_token_seconds_count",
    ),
    "running": ("sglang:num_running_reqs",),
    "waiting": ("sglang:num_queue_reqs",),
}
_LLAMA_SERVER = {  # counts no requests; prompt processing stands for time to first token
    "prompt_tokens": ("llamacpp:prompt_tokens_total",),
    "completion_tokens": ("llamacpp:tokens_predicted_total",),
    "ttft_s": ("llamacpp:prompt_seconds_total",),
    "itl_s": ("llamacpp:tokens_predicted_seconds_total",),
    "running": ("llamacpp:requests_processing",),
    "waiting": ("llamacpp:requests_deferred",),
}
NEEDED = ("prompt_tokens", "completion_tokens", "running", "waiting")
MAX_COUNT = 1e15
GAUGES = ("running", "waiting")  # present from the start, unlike counters with labels


@dataclass(frozen=True, slots=True)
class Engine:
    """How the processes of a server are run and watched.

    `command` is the command line as words, with PLACES in braces; empty for Hearth's own API.
    `answer_tokens` is the mean length of answers. If an engine does not count requests, they are
    estimated from it."""

    metrics: MetricNames = field(default_factory=dict)
    command: tuple[str, ...] = ()
    ready_path: str = "/health"
    answer_tokens: float = 1.0

    @property
    def drains_itself(self) -> bool:
        """Whether it finishes its requests on SIGTERM instead of cutting them off."""
        return not self.command


def _engine(metrics: MetricNames, command: str) -> Engine:
    return Engine(metrics, tuple(command.split()))


HEARTH = Engine(_HEARTH, ready_path="/ready")
ENGINES: Mapping[str, Engine] = {
    "hearth": HEARTH,
    "vllm": _engine(_VLLM, "vllm serve {model} --host {host} --port {port} --max-num-seqs {rows}"),
    "sglang": _engine(
        _SGLANG,
        "python -m sglang.launch_server --model-path {model} --host {host} --port {port} "
        "--max-running-requests {rows} --enable-metrics",
    ),
    "llama-server": _engine(
        _LLAMA_SERVER,
        "llama-server --model {model} --host {host} --port {port} --parallel {rows} --metrics",
    ),
    "command": Engine(),
}


def filled(command: Sequence[str], **places: object) -> tuple[str, ...]:
    """Returns the command line with the given places filled in. Keeps other braces, as in JSON."""
    for name, value in places.items():
        command = [word.replace(f"{{{name}}}", str(value)) for word in command]
    return tuple(command)


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
