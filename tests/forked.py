"""Servers for tests, forked from a Python that has imported their modules.

Imports are most of what the start of a server costs, and tests start hundreds. Each process of
pytest has one fork server, to its end: from its first use, or, a worker, forked from one that has
imported for all. It starts no thread and reads no setting: what is forked gets arguments,
environment, folder and log of its own, and then runs a module as `python -m` does. Tests of the
start itself run the true command.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NoReturn

from lab.kit import servers

PRELOADED = (
    "benchmarking.load.generator",
    "common.connections.worker",
    "gunicorn.app.wsgiapp",
    "gunicorn.glogging",
    "inference_api._mock_inference_api_server",
    "inference_api.engine.devices",
    "inference_api.engine.kernel_runner",
    "inference_api.preflight",
    "proxy.proxy",
    "proxy.worker",
    "tokenizers",
    "uvloop",
)
MAX_MESSAGE_BYTES = 1 << 17
MAX_FILES = 3


class ForkedProcess:
    """As much of subprocess.Popen as tests use; its parent is the fork server."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self.pid = pid
        self._server = server
        self._pidfd = os.pidfd_open(pid)
        self._returncode: int | None = None

    def poll(self) -> int | None:
        if self._returncode is None and select.select([self._pidfd], [], [], 0)[0]:
            os.close(self._pidfd)
            self._returncode = self._server.reap(self.pid)
        return self._returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit status, negative for a signal. Raises subprocess.TimeoutExpired."""
        if self._returncode is None:
            select.select([self._pidfd], [], [], timeout)
        returncode = self.poll()
        if returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that forks. Any thread may ask it; it answers one after the other."""

    def __init__(self, of: "ForkServer | None" = None) -> None:
        """Starts it, or has it forked `of` another one."""
        self._connection, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        with its_end:
            if of:  # which may still import: nobody waits for that
                socket.send_fds(of._connection, [b'{"serve": 1}'], [its_end.fileno()])
                return
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(its_end.fileno())],
                cwd=servers.ROOT,
                pass_fds=[its_end.fileno()],
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},  # BLAS would start threads
            )

    def start(
        self,
        arguments: Sequence[str],
        log: BinaryIO,
        env: Mapping[str, str],
        cwd: Path = servers.ROOT,
        start_new_session: bool = False,
    ) -> ForkedProcess:
        """Runs `python -m *arguments`, which writes to `log`."""
        files = (log.fileno(), log.fileno())
        return ForkedProcess(self, self.fork(arguments, files, env, cwd, start_new_session))

    def fork(
        self,
        arguments: Sequence[str],
        files: Sequence[int],
        env: Mapping[str, str],
        cwd: Path = servers.ROOT,
        start_new_session: bool = False,
    ) -> int:
        """The number of a process that runs `python -m *arguments`. `files`: its standard output
        and error, and its standard input where it reads any."""
        command = {
            "arguments": arguments,
            "env": env,
            "cwd": str(cwd),
            "start_new_session": start_new_session,
        }
        return self._ask({"run": command}, [*files])

    def wait_until_imported(self) -> None:
        """For whoever starts processes while others wait for it with little patience."""
        self._ask({"wait": True}, [])

    def reap(self, pid: int) -> int:
        """Returns the exit status of a process that has ended."""
        return self._ask({"reap": pid}, [])

    def close(self) -> None:
        self._connection.close()
        if self._process:
            self._process.wait(servers.TIMEOUT_S)

    def _ask(self, message: Mapping[str, Any], fds: list[int]) -> int:
        with self._turn:
            socket.send_fds(self._connection, [json.dumps(message).encode()], fds)
            return int(self._connection.recv(MAX_MESSAGE_BYTES))


def fork_servers(count: int) -> list[ForkServer]:
    """One for each worker that is to be forked from this process, and last the one that imports
    for all."""
    first = ForkServer()
    return [*(ForkServer(first) for _ in range(count)), first]


_given: list[ForkServer] = []  # to this worker


def keep_one(servers: Sequence[ForkServer], number: int) -> None:
    """In the worker of that number, to its end; the other servers are not for it."""
    for at, server in enumerate(servers):
        if at == number:
            _given.append(server)
            atexit.register(server.close)
        else:
            server.close()


@cache
def fork_server() -> ForkServer:
    if _given:
        return _given[0]
    server = ForkServer()
    atexit.register(server.close)
    return server


def _serve(connection: socket.socket) -> str:
    """Returns, in each process forked, the module that it is to run."""
    while True:
        message, fds, _, _ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, MAX_FILES)
        if not message:
            leave()
        asked = json.loads(message)
        if "serve" in asked:
            if os.fork() == 0:
                connection.close()
                connection = socket.socket(fileno=fds[0])
            else:
                os.close(fds[0])
            continue
        if "wait" in asked:
            answer = 0
        elif "reap" in asked:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["reap"], 0)[1])
        elif (answer := os.fork()) == 0:
            connection.close()
            return _become(fds, **asked["run"])
        else:
            for fd in fds:
                os.close(fd)
        connection.send(str(answer).encode())


def _become(
    files: list[int], arguments: list[str], env: dict[str, str], cwd: str, start_new_session: bool
) -> str:
    if start_new_session:
        os.setsid()
    for file, stream in zip(files, (sys.stdout, sys.stderr, sys.stdin), strict=False):
        os.dup2(file, stream.fileno())
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if action := env.get("PYTHONWARNINGS"):
        warnings.simplefilter(action)  # type: ignore[arg-type]
    sys.path.insert(0, cwd)
    sys.argv = arguments
    return arguments[0]


def leave(status: int = 0) -> NoReturn:
    """Ends this process as Python does, but destroys no module: that would copy all that a forked
    process shares, which takes longer than most of them live."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for those that are no daemons
    atexit._run_exitfuncs()
    gc.collect()  # says what was never closed or awaited
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError, OSError):  # it was closed
            stream.flush()
    os._exit(status)


def _run(module: str) -> NoReturn:
    status = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        is_text = isinstance(end.code, str)
        if is_text:
            print(end.code, file=sys.stderr)
        status = 1 if is_text else int(end.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    leave(status)


def _start_server(arguments: Sequence[str], log: BinaryIO, env: Mapping[str, str]) -> ForkedProcess:
    return fork_server().start(arguments, log, env, start_new_session=True)


served = partial(servers.served_by, _start_server)

if __name__ == "__main__":
    for name in PRELOADED:
        import_module(name)
    gc.freeze()  # no search for garbage looks at what was imported, or copies its pages
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))
