"""Every metric of the API process, declared here and nowhere else.

Threads record events when they happen. The state of rows and queues is read at each scrape. Tables
named VLLM_… give the same numbers vLLM's names, which autoscalers and dashboards know.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from flask import Blueprint, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from common.operations import operation
from inference_api.core.draft_depths import DraftDepths
from inference_api.core.record import GenerationRecord, Observer
from inference_api.core.status import ModelSnapshot

MODEL = "model_name"
LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
STEP_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
TOKEN_GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
BATCH_BUCKETS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 64, 128, 256)
ACCEPTED_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
TOKEN_BUCKETS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 32768)
VLLM_REASONS = {"cancelled": "abort"}  # finish reasons that have another name in vLLM


@dataclass(frozen=True, slots=True)
class ServerState:
    """Rows, queues and the decode loop's totals of one model at one moment."""

    user_rows: int
    queued: int
    sessions: int
    snapshot: ModelSnapshot = field(default_factory=ModelSnapshot)


# Keyed by name: the help text, and the value.
Gauges = dict[str, tuple[str, Callable[[ServerState], float]]]
Counters = dict[str, tuple[str, str]]  # the second text is a field of `StepTotals`

PAGES = {  # what pages are counted as, by field of `PageCounts`
    "held": "that rows hold",
    "cached": "that no row holds, kept for prompts that begin alike",
    "free": "that hold nothing",
}
GAUGES: Gauges = {
    "inference_rows_busy": ("User rows that run a request.", attrgetter("snapshot.busy_rows")),
    "inference_rows": ("User rows.", attrgetter("user_rows")),
    "inference_queue_depth": ("Requests waiting for a row, or paused.", attrgetter("queued")),
    **{
        f"inference_{pages}_{kind}": (f"Pages{of} {text}.", attrgetter(f"snapshot.{pages}.{kind}"))
        for pages, of in (("pages", ""), ("draft_pages", " of the draft model"))
        for kind, text in PAGES.items()
    },
    "inference_sessions": ("Sessions with an open stream.", attrgetter("sessions")),
}
VLLM_GAUGES: Gauges = {
    "vllm:num_requests_running": GAUGES["inference_rows_busy"],
    "vllm:num_requests_waiting": GAUGES["inference_queue_depth"],
    "vllm:kv_cache_usage_perc": (
        "Pages that rows hold, of all; 0 to 1.",
        lambda state: state.snapshot.pages.held / max(state.snapshot.pages.total, 1),
    ),
}
COUNTERS: Counters = {
    "inference_steps": ("Steps that called the model.", "steps"),
    "inference_prefilled_tokens": ("Prompt tokens prefilled.", "prefilled_tokens"),
    "inference_reused_tokens": (
        "Prompt tokens that were remembered instead of prefilled.",
        "reused_tokens",
    ),
    "inference_disk_tokens": ("Tokens of prompts read from PREFIX_CACHE_DIR.", "disk_tokens"),
    "inference_generated_tokens": ("Tokens decoded.", "generated_tokens"),
    "inference_model_seconds": ("Time inside the model.", "model_s"),
    "inference_loop_seconds": ("Time of steps outside the model.", "loop_s"),
    "inference_pauses": (
        "Requests that left their row to others because there were too few pages.",
        "pauses",
    ),
    "inference_drafts": ("Drafts verified.", "drafts"),
    "inference_drafted_tokens": ("Tokens drafted.", "drafted_tokens"),
    "inference_accepted_tokens": ("Drafted tokens that were accepted.", "accepted_tokens"),
}
VLLM_COUNTERS: Counters = {
    "vllm:num_preemptions": COUNTERS["inference_pauses"],
    "vllm:prefix_cache_queries": ("Prompt tokens that were looked for.", "looked_for_tokens"),
    "vllm:prefix_cache_hits": COUNTERS["inference_reused_tokens"],
    "vllm:external_prefix_cache_hits": COUNTERS["inference_disk_tokens"],
    "vllm:spec_decode_num_drafts": COUNTERS["inference_drafts"],
    "vllm:spec_decode_num_draft_tokens": COUNTERS["inference_drafted_tokens"],
    "vllm:spec_decode_num_accepted_tokens": COUNTERS["inference_accepted_tokens"],
}
# Histograms of ended generations: by field of `GenerationRecord`, the name, help text and buckets.
RECORDED: Mapping[str, tuple[str, str, Sequence[float]]] = {
    "ttft_s": ("time_to_first_token_seconds", "From request to first token.", LATENCY_BUCKETS_S),
    "queue_s": ("queue_time_seconds", "Waiting for a user row.", LATENCY_BUCKETS_S),
    "prefill_s": (
        "prefill_time_seconds",
        "From leaving the queue to first token.",
        LATENCY_BUCKETS_S,
    ),
    "decode_s": ("decode_time_seconds", "From first token to last token.", LATENCY_BUCKETS_S),
    "e2e_s": ("e2e_latency_seconds", "From request to last token.", LATENCY_BUCKETS_S),
    "prompt_tokens": ("prompt_tokens", "Tokens of a prompt.", TOKEN_BUCKETS),
    "completion_tokens": ("completion_tokens", "Tokens of an answer.", TOKEN_BUCKETS),
}
VLLM_RECORDED = {  # vLLM's names of these histograms
    "vllm:time_to_first_token_seconds": "ttft_s",
    "vllm:request_queue_time_seconds": "queue_s",
    "vllm:request_prefill_time_seconds": "prefill_s",
    "vllm:request_decode_time_seconds": "decode_s",
    "vllm:e2e_request_latency_seconds": "e2e_s",
    "vllm:request_prompt_tokens": "prompt_tokens",
    "vllm:request_generation_tokens": "completion_tokens",
}
VLLM_TOTALS = {  # vLLM's counters of ended generations: the name, help text
    "prompt_tokens": ("vllm:prompt_tokens", "Tokens of prompts."),
    "completion_tokens": ("vllm:generation_tokens", "Tokens of answers."),
}


# Counters with a series for each depth of drafts: the help text, a field of `DraftDepths`, and the
# label with its first value.
DEPTH_COUNTERS = {
    "inference_drafted_tokens_by_depth": (
        "Drafts as deep as that.",
        "drafted_by_depth",
        ("depth", 1),
    ),
    "inference_accepted_tokens_by_depth": (
        "Drafts accepted as deep as that.",
        "accepted_by_depth",
        ("depth", 1),
    ),
}
VLLM_DEPTH_COUNTERS = {
    "vllm:spec_decode_num_accepted_tokens_per_pos": (
        "Drafts accepted up to a position.",
        "accepted_by_depth",
        ("position", 0),
    )
}


class ServerMetrics(Observer):
    """Metrics, recorded by any thread and scraped through `registry`."""

    def __init__(
        self,
        models: Sequence[str],
        state: Callable[[str], ServerState],
        with_vllm_names: bool = True,
        with_members: bool = False,
    ) -> None:
        """`models` are names; `state` returns the state of one. `with_members` says whether models
        are loaded on demand, so that requests may wait for them."""
        self.registry = CollectorRegistry()
        self._requests = self._counter(
            "requests", "Generations that ended, by how.", MODEL, "finish_reason"
        )
        self._errors = self._counter("errors", "Requests answered with an error.", "code")
        self._ignored = self._counter(
            "ignored_fields", "Requests with a field that was left aside, by the field.", "field"
        )
        self._recorded = {figure: self._histogram(*each) for figure, each in RECORDED.items()}
        self._itl = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of a stream.", TOKEN_GAP_BUCKETS_S
        )
        batch_size = self._histogram(
            "batch_size", "Rows decoded together in a step.", BATCH_BUCKETS
        )
        self._batch_sizes = {model: batch_size.labels(model) for model in models}
        self._step_times = Histogram(
            "inference_step_seconds",
            "Time of a step, by up to how many rows decoded in it.",
            [MODEL, "batch_size"],
            registry=self.registry,
            buckets=STEP_BUCKETS_S,
        )
        totals_registry = self.registry if with_vllm_names else None
        self._totals = {
            figure: Counter(*each, [MODEL], registry=totals_registry)
            for figure, each in VLLM_TOTALS.items()
        }
        self._switch = Histogram(
            "hearth:expert_switch_seconds",
            "From a request for an expert that was not in memory until it was.",
            [MODEL],
            registry=self.registry if with_members else None,
            buckets=LATENCY_BUCKETS_S,
        )
        self.registry.register(_StateCollector(models, state, with_vllm_names))
        if with_vllm_names:
            self._register_vllm_names()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)

    def token_gap(self, model: str, seconds: float) -> None:
        self._itl.labels(model).observe(seconds)

    def stepped(self, model: str, batch_size: int, seconds: float) -> None:
        """Record a step in which `batch_size` rows decoded. Times are grouped by batch sizes up to
        powers of two; 0 stands for steps with prompts only. The decode thread calls it."""
        if batch_size:
            self._batch_sizes[model].observe(batch_size)
        group = 1 << (batch_size - 1).bit_length() if batch_size else 0
        self._step_times.labels(model, group).observe(seconds)

    def ended(self, record: GenerationRecord) -> None:
        self._requests.labels(record.model, record.finish_reason).inc()
        for figure, histogram in self._recorded.items():
            histogram.labels(record.model).observe(getattr(record, figure))
        for figure, counter in self._totals.items():
            counter.labels(record.model).inc(getattr(record, figure))
        if record.switch is not None:
            self._switch.labels(record.model).observe(record.switch.switching_time_s)

    def request_failed(self, code: str) -> None:
        self._errors.labels(code).inc()

    def field_ignored(self, field: str) -> None:
        self._ignored.labels(field).inc()

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"inference_{name}", help_text, labels, registry=self.registry)

    def _histogram(self, name: str, help_text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(
            f"inference_{name}", help_text, [MODEL], registry=self.registry, buckets=buckets
        )

    def _register_vllm_names(self) -> None:
        recorded = {name: self._recorded[figure] for name, figure in VLLM_RECORDED.items()}
        renamed: Mapping[str, Collector] = {
            "vllm:request_success": self._requests,
            "vllm:time_per_output_token_seconds": self._itl,  # vLLM's older name
            "vllm:inter_token_latency_seconds": self._itl,
            **recorded,
        }
        self.registry.register(_Renamed(renamed))


class _StateCollector(Collector):
    """Reads the server's state at each scrape, so that gauges are never stale."""

    def __init__(
        self, models: Sequence[str], state: Callable[[str], ServerState], with_vllm_names: bool
    ) -> None:
        self._models = models
        self._state = state
        self._gauges = GAUGES | (VLLM_GAUGES if with_vllm_names else {})
        self._counters = COUNTERS | (VLLM_COUNTERS if with_vllm_names else {})
        self._by_depth = DEPTH_COUNTERS | (VLLM_DEPTH_COUNTERS if with_vllm_names else {})

    def collect(self) -> Iterable[Metric]:
        states = {model: self._state(model) for model in self._models}
        for name, (help_text, value_of) in self._gauges.items():
            gauge = GaugeMetricFamily(name, help_text, labels=[MODEL])
            for model, state in states.items():
                gauge.add_metric([model], value_of(state))
            yield gauge
        for name, (help_text, figure) in self._counters.items():
            counter = CounterMetricFamily(name, help_text, labels=[MODEL])
            for model, state in states.items():
                counter.add_metric([model], getattr(state.snapshot.totals, figure))
            yield counter
        yield from self._of_drafts({model: each.snapshot.depths for model, each in states.items()})

    def _of_drafts(self, depths: Mapping[str, DraftDepths]) -> Iterable[Metric]:
        """Yields the counters by depth of drafts, and a histogram of accepted tokens."""
        for name, (help_text, figure, (label, first)) in self._by_depth.items():
            counter = CounterMetricFamily(name, help_text, labels=[MODEL, label])
            for model, of_model in depths.items():
                for depth, count in enumerate(getattr(of_model, figure), first):
                    counter.add_metric([model, str(depth)], count)
            yield counter
        histogram = HistogramMetricFamily(
            "inference_accepted_tokens_per_draft",
            "Drafted tokens that a step accepted.",
            labels=[MODEL],
        )
        for model, of_model in depths.items():
            buckets = [(str(le), sum(of_model.right[: le + 1])) for le in ACCEPTED_BUCKETS]
            buckets.append(("+Inf", sum(of_model.right)))
            histogram.add_metric([model], buckets, of_model.accepted_tokens)
        yield histogram


class _Renamed(Collector):
    """The same metrics under vLLM's names, with vLLM's label for the finish reason."""

    def __init__(self, collectors: Mapping[str, Collector]) -> None:
        self._collectors = collectors

    def collect(self) -> Iterable[Metric]:
        for name, collector in self._collectors.items():
            for family in collector.collect():
                renamed = Metric(name, family.documentation, family.type)
                for sample in family.samples:
                    suffix = sample.name.removeprefix(family.name)
                    labels = dict(sample.labels)
                    if reason := labels.pop("finish_reason", None):
                        labels["finished_reason"] = VLLM_REASONS.get(reason, reason)
                    renamed.samples.append(sample._replace(name=name + suffix, labels=labels))
                yield renamed


def create_blueprint(registry: CollectorRegistry) -> Blueprint:
    blueprint = Blueprint("metrics", __name__)

    @blueprint.get("/metrics")
    @operation("Metrics in Prometheus' text format.", {200: "text/plain"})
    def metrics() -> Response:
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    return blueprint
