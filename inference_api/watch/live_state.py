"""The live state of the server as a small JSON value, for the dashboard.

The calling thread builds it from published snapshots, which takes no time from the decode thread.
Rows may advance while they are read, so the rows of an answer can be a step apart.
"""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from inference_api.bundle.cards import bundle_state
from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.rows import UserRow
from inference_api.core.status import Phase
from inference_api.loading.hardware import resident_memory_bytes

LATENCIES = {
    "ttft": "inference_time_to_first_token_seconds",
    "itl": "inference_inter_token_latency_seconds",
}
BATCH_SIZES = "inference_batch_size_sum"
REQUESTS = "inference_requests_total"
ERRORS = "inference_errors_total"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LiveState:
    """Reads the state of the server. Stateless; any thread may use it."""

    backend: DecodeBackend
    registry: CollectorRegistry

    def dump(self) -> Json:
        now_s, snapshot = time.monotonic(), self.backend.snapshot
        totals = snapshot.totals
        return {
            "at_s": now_s,
            "server": self._server(),
            "rows": self._rows(now_s),
            "queue": {
                "waiting": len(self.backend.input_queue),
                "paused": snapshot.paused,
                "capacity": self.backend.settings.queue_capacity,
            },
            "totals": {
                "steps": totals.steps,
                "prefilled_tokens": totals.prefilled_tokens,
                "generated_tokens": totals.generated_tokens,
            },
            "speculation": self._speculation(),
            "kv_cache": self._kv_cache(),
            "bundle": bundle_state(self.backend),
            "latencies": {name: self._histogram(metric) for name, metric in LATENCIES.items()},
            "finished": self._counts(REQUESTS, "finish_reason"),
            "errors": self._counts(ERRORS, "code"),
        }

    def _server(self) -> Json:
        backend, settings = self.backend, self.backend.settings
        default = settings.default_model.name
        is_loaded = backend.phase in (Phase.READY, Phase.DRAINING)
        return {
            "phase": str(backend.phase),
            "reason": backend.unhealthy_reason(),
            "models": list(backend.served) if is_loaded else [],
            "has_router": settings.has_router,
            "context_tokens": backend.served[default].max_seq_len if is_loaded else None,
            "resident_bytes": resident_memory_bytes(),
        }

    def _rows(self, now_s: float) -> list[Json | None]:
        """Returns the rows, None for each free one. Members of a bundle share rows, so their busy
        rows come first and have no fixed places."""
        users = list(self.backend.users)
        rows = [None if user is None else self._row(user, now_s) for user in users]
        if self.backend.settings.bundle is None:
            return rows
        busy = [row for row in rows if row]
        return [*busy, *[None] * (self.backend.max_users - len(busy))]

    def _row(self, row: UserRow, now_s: float) -> Json:
        prompt_tokens = len(row.request.prompt_tokens)
        model = {"model": row.request.model} if len(self.backend.served) > 1 else {}
        return model | {
            "session_id": row.request.output.session_id,
            "request_id": row.request.caller.request_id,
            "team_id": row.request.caller.team_id,
            "phase": _phase(row),
            "prompt_tokens": prompt_tokens,
            "cached_tokens": min(row.num_cached, prompt_tokens),
            "generated_tokens": len(row.generated),
            "token_limit": row.token_limit,
            "running_s": round(now_s - row.admitted_at_s, 3),
        }

    def _speculation(self) -> Json:
        """Returns counts since start, by model. `decoded_rows` sums the rows of all steps."""
        decoded_rows = self._counts(BATCH_SIZES, "model_name")
        return {
            model: {
                "drafted_tokens": each.totals.drafted_tokens,
                "accepted_tokens": each.totals.accepted_tokens,
                "generated_tokens": each.totals.generated_tokens,
                "decoded_rows": decoded_rows.get(model, 0),
            }
            for model, each in self.backend.snapshot.models.items()
        }

    def _kv_cache(self) -> Json:
        """Returns for each loaded model the numbers of held, cached and free pages, and a row's
        tokens per page that it holds."""
        models = dict(self.backend.models)  # a copy, because members come and go
        pages = {name: model.rows.pages for name, model in models.items()}
        return {
            name: {
                **{f"{kind}_pages": count for kind, count in each.counts._asdict().items()},
                "page_tokens": each.tokens_per_page,
            }
            for name, each in pages.items()
        }

    def _histogram(self, name: str) -> Json:
        """Returns a histogram over all models since start. The last upper bound is null."""
        numbers = Counter[str]()
        sum_s = 0.0
        for sample in self._samples([f"{name}_bucket", f"{name}_sum"]):
            if sample.name.endswith("_sum"):
                sum_s += sample.value
            else:
                numbers[sample.labels["le"]] += int(sample.value)
        buckets = [[None if le == "+Inf" else float(le), numbers[le]] for le in numbers]
        return {"buckets": buckets, "sum_s": sum_s}

    def _counts(self, name: str, label: str) -> dict[str, int]:
        """Returns a metric's counts by `label`, over all models."""
        counts = Counter[str]()
        for sample in self._samples([name]):
            counts[sample.labels[label]] += int(sample.value)
        return counts

    def _samples(self, names: list[str]) -> Iterable[Sample]:
        for metric in self.registry.restricted_registry(names).collect():
            yield from metric.samples


def _phase(row: UserRow) -> str:
    """Returns the phase of a row, which is `queued` until the first chunk of its prompt."""
    if row.is_prefilled:
        return "decode"
    return "prefill" if row.has_begun else "queued"
