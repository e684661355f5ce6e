"""Processes that end with this one, and the ranks that serve one model together."""

import ctypes
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec

from common.fetch import answers_ok
from inference_api.errors import StartupError
from inference_api.pipeline.ranks import local_rank
from inference_api.pipeline.splits import resolved
from inference_api.settings import Settings

RANK = (sys.executable, "-m", "inference_api.pipeline")
MAX_RESTARTS = 20
SHUTDOWN_BEYOND_DRAIN_S = 30
MAX_PAUSELESS_S = 86_400  # trials of SPLIT=auto wait for pauses between requests
PR_SET_PDEATHSIG = 1  # prctl(2)
NO_SEARCH = (
    "SPLIT=auto needs the search for splits, which is not installed; run `pip install "
    "'hearth[weights]'` (in a clone: `pip install --editable '.[weights]'`), or give the layers of "
    "each rank, as in SPLIT=12,10,10."
)


class Process(subprocess.Popen[bytes]):
    """In a session of its own, so that a Ctrl-C reaches it through us alone."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__(
            command,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=partial(_end_with, os.getpid(), ctypes.CDLL(None)),
        )

    def kill(self) -> None:
        """All that is left of its session."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Ranks:
    """All ranks of a model, to be used as one process. When one fails, all end and start again, up
    to MAX_RESTARTS times. With SPLIT=auto the search for the best split runs beside them."""

    def __init__(self, settings: Settings, url: str) -> None:
        """`url`: of the API, the first rank. Raises StartupError where each start would fail."""
        self._num_ranks = _num_ranks(settings)
        self._shutdown_s = math.ceil(settings.drain_timeout_s) + SHUTDOWN_BEYOND_DRAIN_S
        self._ready_url = f"{url}/ready"
        self._search_command = _search(settings, url) if settings.split == "auto" else None
        self._restarts_left = MAX_RESTARTS
        self._start()

    def poll(self) -> int | None:
        """Returns the exit status once all have ended well, or one may not fail any more. Starts
        what is to be started."""
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
        """Let the first drain, and the others end after it."""
        for each in self._all:
            each.terminate()

    def wait(self) -> None:
        for each in self._all:
            each.wait()

    def kill(self) -> None:
        for each in self._all:
            each.kill()

    def _start(self) -> None:
        port = _free_port()
        self._search: list[Process] = []
        self._ranks = [
            Process(RANK, local_rank(rank, self._num_ranks, port))
            for rank in range(self._num_ranks)
        ]

    def _end(self) -> None:
        """The first may still answer its last requests with what has happened."""
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
    """Raises StartupError where the model cannot be split so."""
    from inference_api.loading.checkpoint import describe  # what is not split does not wait for it

    assert settings.split is not None
    num_ranks = settings.split_ranks if settings.split == "auto" else len(settings.split)
    described = describe(settings.default_model.model)
    if described.config is None or described.faults:
        raise StartupError(described.faults)
    resolved(settings.split, described.config.num_layers, num_ranks)
    return num_ranks


def _search(settings: Settings, url: str) -> Sequence[str]:
    """The search for the best split, which ends by itself. Raises StartupError."""
    if find_spec("scipy") is None:
        raise StartupError(NO_SEARCH)
    model = settings.default_model
    session = f"{model.name} {model.quantization} {settings.split_ranks} ranks"
    session += " on cuda" * (model.device == "cuda")
    drive = [sys.executable, "-m", "weights", "drive", "pipeline", "--url", url]
    return [*drive, "--model", session, "--timeout", str(MAX_PAUSELESS_S)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with(parent: int, libc: ctypes.CDLL) -> None:
    """Have Linux send us SIGTERM when the parent ends, however that happens. Runs between fork and
    exec, which is safe as the parent has one thread."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)
