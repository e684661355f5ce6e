"""Child processes that end with this one, and the ranks that serve one model together."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec

from common.connections.sockets import free_port
from common.fetch import answers_ok
from common.processes import end_with_parent
from inference_api.errors import StartupError
from inference_api.pipeline.ranks import local_rank, resolved
from inference_api.settings import Settings

RANK = (sys.executable, "-m", "inference_api.pipeline")
MAX_RESTARTS = 20
SHUTDOWN_BEYOND_DRAIN_S = 30
MAX_PAUSELESS_S = 86_400  # trials of SPLIT=auto wait for pauses between requests
NO_SEARCH = (
    "SPLIT=auto needs the search for splits, which is not installed; run `pip install "
    "'hearth[weights]'` (in a clone: `pip install --editable '.[weights]'`), or give the layers of "
    "each rank, as in SPLIT=12,10,10."
)


class Process(subprocess.Popen[bytes]):
    """A child process in its own session, so that Ctrl-C reaches it only through this process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__(
            command,
            env={**os.environ, **environment},
            start_new_session=True,
            # Safe between fork and exec, as this process has one thread.
            preexec_fn=partial(end_with_parent, parent=os.getpid()),
        )

    def kill(self) -> None:
        """Kill all processes that are left in its session."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Ranks:
    """All ranks of a model, to be used like one process. When one fails, all end and start again,
    up to MAX_RESTARTS times. With SPLIT=auto, the search for the best split runs beside them."""

    def __init__(self, settings: Settings, url: str) -> None:
        """`url` is the API's, which is rank 0. Raises StartupError if every start would fail."""
        self._num_ranks = _num_ranks(settings)
        self._shutdown_s = math.ceil(settings.drain_timeout_s) + SHUTDOWN_BEYOND_DRAIN_S
        self._ready_url = f"{url}/ready"
        self._search_command = _search(settings, url) if settings.split == "auto" else None
        self._restarts_left = MAX_RESTARTS
        self._start()

    def poll(self) -> int | None:
        """Returns the exit status once all have ended, or one has failed after the last restart;
        None before. Restarts failed ranks, and starts the search once the API is ready."""
        ended = [status for each in self._ranks if (status := each.poll()) is not None]
        if any(ended) and self._restarts_left:
            self._restarts_left -= 1
            print("A rank has ended; all start again.", file=sys.stderr, flush=True)
            self._end()
            self._start()
        elif any(ended) or len(ended) == self._num_ranks:
            return next(filter(None, ended), 0)
        elif self._search_command and not self._search and answers_ok(self._ready_url):
            self._search.append(Process(self._search_command, {}))
        return None

    def terminate(self) -> None:
        """Let rank 0 drain; the other ranks end after it."""
        for each in self._all:
            each.terminate()

    def wait(self) -> None:
        for each in self._all:
            each.wait()

    def kill(self) -> None:
        for each in self._all:
            each.kill()

    def _start(self) -> None:
        port = free_port()
        self._search: list[Process] = []
        self._ranks = [
            Process(RANK, local_rank(rank, self._num_ranks, port))
            for rank in range(self._num_ranks)
        ]

    def _end(self) -> None:
        """End all processes. Rank 0 has time to answer its last requests, be it with an error."""
        until_s = time.monotonic() + self._shutdown_s
        self.terminate()
        for each in self._all:
            try:
                each.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()

    @property
    def _all(self) -> Sequence[Process]:
        return [*self._ranks, *self._search]


def _num_ranks(settings: Settings) -> int:
    """Returns the number of ranks. Raises StartupError if the model cannot be split over them."""
    from inference_api.loading.checkpoint import describe  # slow, and needed only for a split model

    assert settings.split is not None
    num_ranks = settings.split_ranks if settings.split == "auto" else len(settings.split)
    described = describe(settings.default_model.model)
    if described.config is None or described.faults:
        raise StartupError(described.faults)
    resolved(settings.split, described.config.num_layers, num_ranks)
    return num_ranks


def _search(settings: Settings, url: str) -> Sequence[str]:
    """Returns a command that searches for the best split, then ends. Raises StartupError."""
    if find_spec("scipy") is None:
        raise StartupError(NO_SEARCH)
    model = settings.default_model
    session = f"{model.name} {model.quantization} {settings.split_ranks} ranks"
    session += " on cuda" * (model.device == "cuda")
    drive = [sys.executable, "-m", "weights", "drive", "pipeline", "--url", url]
    return [*drive, "--model", session, "--timeout", str(MAX_PAUSELESS_S)]
