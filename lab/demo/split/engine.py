"""Starts the ranks of a pipeline, and measures one split after another."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import TracebackType
from typing import Any, Self

from inference_api.pipeline.ranks import local_rank
from lab.kit.servers import ROOT, free_port
from lab.kit.shares import CpuLimiter
from weights.drivers import Ring
from weights.errors import EngineUnusable

START_TIMEOUT_S, TRIAL_TIMEOUT_S, STOP_TIMEOUT_S = 300.0, 300.0, 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """The pipeline's load. A single row measures the sum of all stages, which its user feels. Many
    rows run in parts and measure mostly the slowest stage, which bounds throughput."""

    rows: int
    seconds: float


class PipelineEngine:
    """A `Driver` of ranks that are limited to their shares of a core. One thread."""

    def __init__(self, model: Path, shares: list[float], load: Load, limiter: CpuLimiter) -> None:
        """`shares` has the share of one core of each rank."""
        self._shares, self._load, self._limiter = shares, load, limiter
        self._lines: Queue[str] = Queue()
        self._command = (
            *(sys.executable, "-m", "lab.demo.split.stage"), str(model), str(load.rows)
        )  # fmt: skip
        self._ranks: list[subprocess.Popen[str]] = []
        self.ring = Ring((), 0, ())

    def __enter__(self) -> Self:
        shown, shows = os.pipe()
        port = free_port()
        for number in range(len(self._shares)):
            place = local_rank(number, len(self._shares), port)
            self._ranks.append(subprocess.Popen(
                ["env", "OMP_NUM_THREADS=1", *map("=".join, place.items()), *self._command],
                cwd=ROOT, stdin=subprocess.DEVNULL if number else subprocess.PIPE, stdout=shows,
                text=True, start_new_session=True,
            ))  # fmt: skip
        os.close(shows)
        self._shown = os.fdopen(shown)
        self._reader = Thread(target=self._read, name="pipeline-output", daemon=True)
        self._reader.start()
        try:
            # Limit the ranks only now, because imports need not be slow.
            ready = [self._next(START_TIMEOUT_S) for _ in self._shares]
            for share, rank in zip(self._shares, self._ranks, strict=True):
                self._limiter.limit(share, rank.pid)
        except BaseException:
            self._stop()
            raise
        num_layers = ready[0]["num_layers"]
        nodes = tuple(f"{share:.0%} of a core" for share in self._shares)
        self.ring = Ring(nodes, num_layers, (num_layers,) * len(nodes))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self._stop()

    def measure(self, layers: Sequence[int], parts: int | None = None) -> float:
        """Returns tokens/s with this split and with steps in `parts`. Raises EngineUnusable."""
        assert self._ranks[0].stdin is not None
        try:
            self._ranks[0].stdin.write(
                json.dumps({"layers": list(layers), "parts": parts, **asdict(self._load)}) + "\n"
            )
            self._ranks[0].stdin.flush()
        except BrokenPipeError as error:
            raise EngineUnusable("the pipeline has ended; its output above says why") from error
        return float(self._next(TRIAL_TIMEOUT_S)["tokens_per_s"])

    def finish(self, layers: Sequence[int]) -> str:
        """Returns the setting. The pipeline does not keep running."""
        return f"SPLIT={','.join(map(str, layers))}"

    def _next(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout_s)
        except Empty:
            raise EngineUnusable(f"the pipeline said nothing for {timeout_s:.0f} s") from None
        if not line:
            raise EngineUnusable("the pipeline has ended; its output above says why")
        message: dict[str, Any] = json.loads(line)
        return message

    def _read(self) -> None:
        with self._shown:
            for line in self._shown:
                if line.startswith("{"):
                    self._lines.put(line)
        self._lines.put("")

    def _stop(self) -> None:
        """Close the first rank's input, which ends all ranks. Kill ranks that do not end."""
        jobs = self._ranks[0].stdin
        assert jobs is not None
        self._limiter.close()
        try:
            with suppress(BrokenPipeError):
                jobs.close()
            for rank in self._ranks:
                rank.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            for rank in self._ranks:
                rank.kill()
                rank.wait()
            self._reader.join()
