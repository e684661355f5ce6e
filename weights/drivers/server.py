"""The driver of engines that read their split from the environment at start: vLLM, SGLang, Hearth.

For each split the server is started, measured by concurrent completions over HTTP, and stopped.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from common.fetch import OK, FetchBounds, FetchFailed, answers_ok, ask
from weights.drivers import Ring, last_line
from weights.errors import EngineUnusable, TrialFailed
from weights.partition import Layers

STOP_TIMEOUT_S = 60.0
POLL_S = 0.5
BOUNDS = FetchBounds(connect_s=10.0, read_s=600.0, max_bytes=2**24)
PROMPT = "The history of bridges begins with "


@dataclass(slots=True)
class ServerDriver:
    """A `Driver` that runs a server only during measurements. The environment's `variable` gets the
    layers of each stage: `12,10,10`. `url` ends in /v1."""

    command: tuple[str, ...]
    variable: str
    stages: int
    num_layers: int
    url: str
    model: str
    environment: Mapping[str, str]
    users: int = 8
    generated_tokens: int = 128
    rounds: int = 2  # measured requests of every user, after the warm-up
    start_timeout_s: float = 900.0
    ring: Ring = field(init=False)

    def __post_init__(self) -> None:
        nodes = tuple(f"stage {number}" for number in range(self.stages))
        self.ring = Ring(nodes, self.num_layers, (self.num_layers,) * self.stages)
        if self._is_up():
            raise EngineUnusable(
                f"{self.url} answers already, and would be measured instead; end that server"
            )

    def measure(self, layers: Layers) -> float:
        with self._served(layers):
            self._round(1)
            started_s = time.monotonic()
            num_tokens = self._round(self.rounds)
            return num_tokens / (time.monotonic() - started_s)

    def finish(self, layers: Sequence[int]) -> str:
        return f"{self.variable}={_joined(layers)}"

    @contextmanager
    def _served(self, layers: Layers) -> Iterator[None]:
        environment = {**self.environment, self.variable: _joined(layers)}
        with TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            with log.open("wb") as output:
                try:
                    process = subprocess.Popen(
                        self.command,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                except OSError as error:
                    raise EngineUnusable(f"{self.command[0]} does not start: {error}") from None
                try:
                    self._wait_until_up(process, log)
                    yield
                finally:
                    _end(process)

    def _wait_until_up(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        until_s = time.monotonic() + self.start_timeout_s
        while not self._is_up():
            if process.poll() is not None:
                log_text = log.read_bytes()[-20_000:].decode(errors="replace")
                raise TrialFailed(f"it ended with {process.returncode}: {last_line(log_text)}")
            if time.monotonic() >= until_s:
                raise TrialFailed(f"it does not answer within {self.start_timeout_s:g} s")
            time.sleep(POLL_S)

    def _is_up(self) -> bool:
        return answers_ok(f"{self.url}/models")

    def _round(self, repeats: int) -> int:
        """Returns the tokens of all users, each sending `repeats` requests in turn."""
        with ThreadPoolExecutor(self.users) as pool:
            futures = [pool.submit(self._ask, user, repeats) for user in range(self.users)]
            return sum(each.result() for each in futures)

    def _ask(self, user: int, repeats: int) -> int:
        num_tokens = 0
        for number in range(repeats):
            body = {
                "model": self.model,
                "prompt": f"{user}.{number} {PROMPT}",  # no prompt is a prefix of another
                "max_tokens": self.generated_tokens,
                "ignore_eos": True,
                "temperature": 0,
            }
            try:
                answer = ask(f"{self.url}/completions", BOUNDS, "POST", body)
                if answer.status != OK:
                    raise TrialFailed(f"a completion was refused: {answer.status} {answer.text}")
                num_tokens += int(answer.json()["usage"]["completion_tokens"])
            except (FetchFailed, LookupError, TypeError, ValueError, RecursionError) as error:
                raise TrialFailed(f"a completion failed: {type(error).__name__}") from None
        if not num_tokens:
            raise TrialFailed("the completions have no tokens")
        return num_tokens


def _joined(layers: Sequence[int]) -> str:
    return ",".join(map(str, layers))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Stop the server and all its processes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_TIMEOUT_S)
