"""Starts the ranks of a pipeline under torchrun, and measures one split after another."""

import json
import os
import signal
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

from lab.kit.servers import ROOT
from lab.kit.shares import CpuLimiter
from weights.drivers import Ring
from weights.errors import EngineUnusable

START_TIMEOUT_S, TRIAL_TIMEOUT_S, STOP_TIMEOUT_S = 300.0, 300.0, 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """The pipeline's load: a single row measures the sum of all stages, as its user feels it; many
    go round in parts and measure more of the slowest stage, which bounds throughput."""

    rows: int
    seconds: float


class PipelineEngine:
    """A `Driver`, of processes that run and are held to their shares of a core. One thread."""

    def __init__(self, model: Path, shares: list[float], load: Load, limiter: CpuLimiter) -> None:
        """`shares`: of one core, per rank."""
        self._shares, self._load, self._limiter = shares, load, limiter
        self._lines: Queue[str] = Queue()
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        self._command = [
            "env", "OMP_NUM_THREADS=1", *torchrun, f"--nproc-per-node={len(shares)}",
            "-m", "lab.demo.split.stage", str(model), str(load.rows),
        ]  # fmt: skip
        self._rank_pids: list[int] = []
        self.ring = Ring((), 0, ())

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self._reader = Thread(target=self._read, name="pipeline-output", daemon=True)
        self._reader.start()
        try:
            # Limited only now: what is measured is decoding, not the import of torch.
            ready = [self._next(START_TIMEOUT_S) for _ in self._shares]
            for each in ready:
                self._rank_pids.append(each["pid"])
                self._limiter.limit(self._shares[each["rank"]], each["pid"])
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
        """Tokens/s with this split, and with steps of so many parts. Raises EngineUnusable."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(
                json.dumps({"layers": list(layers), "parts": parts, **asdict(self._load)}) + "\n"
            )
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise EngineUnusable("the pipeline has ended; its output above says why") from error
        return float(self._next(TRIAL_TIMEOUT_S)["tokens_per_s"])

    def finish(self, layers: Sequence[int]) -> str:
        """Nothing is left of it."""
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
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._lines.put(line)
        self._lines.put("")

    def _stop(self) -> None:
        """Let the ranks end by themselves, as their input does; kill those that do not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._limiter.close()
        try:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill()
        except BaseException:
            self._kill()
            raise
        finally:
            self._reader.join()
            self._process.stdout.close()

    def _kill(self) -> None:
        for pid in [self._process.pid, *self._rank_pids]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
