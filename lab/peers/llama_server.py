"""llama.cpp's own server as a peer, with its own speculation; compiled with the Python package.

Its draft methods are in its `common/speculative`: `ngram-simple` proposes the tokens that followed
the last n tokens in prompt or answer, `ngram-cache` uses statistics of short n-grams, and
`draft-simple` asks a smaller model. Every slot drafts for itself; a step verifies all drafts as one
batch. The client that drives ours over HTTP also drives this server.
"""

import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from common.fetch import answers_ok
from inference_api.loading.hardware import physical_cores
from lab.kit.servers import ROOT, TIMEOUT_S, environment, eventually, free_port
from lab.peers.install import LLAMA_CPP, PREBUILT_LLAMA

START_TIMEOUT_S = 120.0
_PLATLIB = Path(sysconfig.get_path("platlib", vars={"platbase": str(LLAMA_CPP.python.parents[1])}))


@contextmanager
def llama_server(
    file: Path, users: int, context: int, options: Sequence[str]
) -> Iterator[tuple[int, psutil.Process]]:
    """Yields the port and process of a server with one model in `users` slots of `context` tokens.
    Raises AssertionError if it does not start."""
    port = free_port()
    threads = str(physical_cores())
    command = [str(_PLATLIB / "bin" / "llama-server"), "--model", str(file), "--port", str(port)]
    command += ["--parallel", str(users), "--ctx-size", str(users * context)]
    command += ["--threads", threads, "--threads-batch", threads, "--no-ui"]
    command += ["--no-cache-prompt", "--cache-ram", "0", *options]
    with _listening(command, port, LD_LIBRARY_PATH=_PLATLIB / "lib") as process:
        yield port, psutil.Process(process.pid)


@contextmanager
def prebuilt_llama_server(
    file: Path, users: int, context: int, threads: int | None = None
) -> Iterator[tuple[int, psutil.Process]]:
    """Like `llama_server`, but from a package that needs no compilation. By default, `threads`
    leaves one core to HTTP and the client, because one compute thread without a core would keep all
    others waiting."""
    port = free_port()
    command = [str(PREBUILT_LLAMA.python), "-m", PREBUILT_LLAMA.check, str(file)]
    command += ["--port", str(port), "--users", str(users), "--context", str(context)]
    threads = max(physical_cores() - 1, 1) if threads is None else threads
    with _listening([*command, "--threads", str(threads)], port) as process:
        yield port, psutil.Process(process.pid)


@contextmanager
def _listening(
    command: Sequence[str], port: int, **variables: object
) -> Iterator[subprocess.Popen[bytes]]:
    """Yields the process once the server answers."""
    with TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(**variables), stdout=log, stderr=log
        )

        def is_ready() -> bool:
            assert process.poll() is None, f"llama-server has ended:\n{Path(log.name).read_text()}"
            return answers_ok(f"http://127.0.0.1:{port}/health")

        try:
            eventually(is_ready, START_TIMEOUT_S)
            yield process
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)
