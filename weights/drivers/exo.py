"""The driver of an exo cluster: reads its state, posts the instance of a split, and measures it.

It follows the order of exo's own `bench/exo_bench.py`: delete all instances, post the new one,
watch its runners until all are ready, rest, warm up, and measure.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from weights.drivers import Ring
from weights.drivers.exo_instance import (
    Preview,
    choose_preview,
    free_bytes_of,
    placed,
    runner_state,
)
from weights.drivers.http import Http, HttpRefused
from weights.errors import EngineUnusable, TrialFailed
from weights.partition import Layers, ranges

PROMPT = "Tell me about the history of bridges, from the first ones to those of today."
REST_S = 1.0
READY, FAILED = "RunnerReady", "Failed"


@dataclass(slots=True)
class ExoDriver:
    """A `Driver` for exo. The last measured instance keeps running. `nodes` are the ids of nodes to
    use; empty means all. `replaces` lets running instances be deleted."""

    http: Http
    model: str
    nodes: tuple[str, ...] = ()
    replaces: bool = False
    generated_tokens: int = 128
    repeats: int = 3
    load_timeout_s: float = 600.0
    poll_s: float = 1.0
    ring: Ring = field(init=False)
    _preview: Preview = field(init=False)

    def __post_init__(self) -> None:
        state = self._get("/state")
        if state.get("instances") and not self.replaces:
            raise EngineUnusable(
                f"{len(state['instances'])} instances run on this cluster and would be measured "
                "along; delete them, or let them be deleted by --replace"
            )
        self._delete_instances()
        self._preview = self._previewed()
        self.ring = self._preview.ring(free_bytes_of(self._get("/state")))

    def measure(self, layers: Layers) -> float:
        self._delete_instances()
        body, runner_ids = placed(self._preview, layers)
        try:
            self.http.call("POST", "/instance", body)
        except HttpRefused as error:
            raise TrialFailed(f"exo refuses the instance: {error}") from None
        self._wait_until_ready(runner_ids)
        time.sleep(REST_S)
        self._generate()  # warm-up, because the first one is slower
        return median(self._generate() for _ in range(self.repeats))

    def finish(self, layers: Sequence[int]) -> str:
        lines = [
            f"{node} start_layer={start} end_layer={end}"
            for node, (start, end) in zip(self.ring.nodes, ranges(layers), strict=True)
        ]
        return "\n".join(lines)

    def _previewed(self) -> Preview:
        """Returns a preview. Retries, because freed memory is reported late."""
        nodes = self.nodes or tuple(self._get("/state/topology").get("nodes", ()))
        query: dict[str, Any] = {"model_id": self.model, "node_ids": list(nodes)}
        until_s = time.monotonic() + self.load_timeout_s
        while True:
            previews = self._get("/instance/previews", query).get("previews")
            try:
                return choose_preview(previews if isinstance(previews, list) else (), len(nodes))
            except EngineUnusable:
                if time.monotonic() >= until_s:
                    raise
            time.sleep(self.poll_s)

    def _delete_instances(self) -> None:
        """Delete all instances, and wait until they are gone."""
        until_s = time.monotonic() + self.load_timeout_s
        while instances := self._get("/state").get("instances"):
            for instance_id in instances:
                self.http.call("DELETE", f"/instance/{instance_id}", missing=None)
            if time.monotonic() >= until_s:
                raise EngineUnusable(f"instances are still there: {', '.join(instances)}")
            time.sleep(self.poll_s)

    def _wait_until_ready(self, runner_ids: Sequence[str]) -> None:
        """Wait until all runners are ready. Raises TrialFailed if one fails or takes too long."""
        until_s = time.monotonic() + self.load_timeout_s
        seen: set[str] = set()
        while time.monotonic() < until_s:
            tags = []
            for runner_id in runner_ids:
                found = self.http.call("GET", f"/state/runners/{runner_id}", missing={})
                tag, message = runner_state(found)
                if FAILED in tag or (runner_id in seen and not tag):
                    raise TrialFailed(f"a runner has failed: {message or 'it vanished'}")
                seen |= {runner_id} if tag else set()
                tags.append(tag)
            if all(tag == READY for tag in tags):
                return
            time.sleep(self.poll_s)
        raise TrialFailed(f"not ready within {self.load_timeout_s:g} s")

    def _generate(self) -> float:
        """Returns tokens/s of one stream, as exo measures it. The bench route never stops early."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": self.generated_tokens,
            "stream": False,
        }
        try:
            answer = self.http.call("POST", "/bench/chat/completions", body)
        except HttpRefused as error:
            raise TrialFailed(f"exo does not generate: {error}") from None
        stats = answer.get("generation_stats") if isinstance(answer, dict) else None
        tokens_per_s = stats.get("generation_tps") if isinstance(stats, dict) else None
        if not isinstance(tokens_per_s, int | float) or not tokens_per_s > 0:
            raise TrialFailed(f"exo says {tokens_per_s!r} tokens/s")
        return float(tokens_per_s)

    def _get(self, path: str, query: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            found = self.http.call("GET", path, query=query)
        except HttpRefused as error:
            raise EngineUnusable(f"exo refuses {path}: {error}") from None
        if not isinstance(found, dict):
            raise EngineUnusable(f"exo answers {path} with something that is no object")
        return found
