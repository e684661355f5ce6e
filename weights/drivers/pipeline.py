"""The driver of Hearth's own pipeline, which moves layers and measures itself between requests."""

import time
from collections.abc import Sequence
from typing import Any

from weights.drivers import Ring
from weights.drivers.http import Http, HttpRefused
from weights.errors import EngineUnusable, TrialFailed
from weights.partition import Layers

POLL_S = 1.0
UNAVAILABLE = 503  # there was no pause between requests


class PipelineDriver:
    """A `Driver` for Hearth. Requests that come during a measurement wait until it ends."""

    def __init__(self, http: Http, timeout_s: float) -> None:
        """`timeout_s` bounds the wait for a pause between requests."""
        self._http, self._timeout_s = http, timeout_s
        layers, _ = self._measured()
        nodes = tuple(f"rank {number}" for number in range(len(layers)))
        self.ring = Ring(nodes, sum(layers), (sum(layers),) * len(layers))

    def measure(self, layers: Layers) -> float:
        self._call("/pipeline/split", {"layers": layers})
        measured, tokens_per_s = self._measured()
        if measured != layers:
            raise TrialFailed(f"somebody else has set the split {measured} meanwhile")
        return tokens_per_s

    def finish(self, layers: Sequence[int]) -> str:
        self._call("/pipeline/split", {"layers": layers})
        return f"SPLIT={','.join(map(str, layers))}"

    def _measured(self) -> tuple[Layers, float]:
        answer = self._call("/pipeline/measure")
        try:
            return tuple(map(int, answer["layers"])), float(answer["tokens_per_s"])
        except (LookupError, TypeError, ValueError, OverflowError):
            raise EngineUnusable("/pipeline/measure answers no speed of a split") from None

    def _call(self, path: str, body: object = None) -> Any:
        until_s = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._http.call("POST", path, body)
            except HttpRefused as refused:
                if refused.status != UNAVAILABLE or time.monotonic() >= until_s:
                    raise TrialFailed(f"{path}: {refused}") from None
            time.sleep(POLL_S)
