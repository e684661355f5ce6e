"""`--workers N`: tests in N processes, each forked from the one that has collected all tests.

Workers that pytest-xdist starts import and collect everything again: ten seconds of a processor for
each, whatever it runs then. Forked ones share what was read once, so that there may be more of them
than cores, which tests that wait for servers need. A worker takes one file after another, and of
a package all files: what shares a server, or a browser, stays together. One in three takes what
computes before what waits, so that there is work for every core all the time.
"""

import os
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies

from tests.forked import fork_servers, keep_one, leave
from tests.ports import leave_to_other_workers

NUMBER = struct.Struct("i")
TASKS = Path("/proc/self/task")


class Worker(NamedTuple):
    pid: int
    messages: Connection


class Sender:
    """A plugin of a worker: sends what its tests report, and which have ended."""

    def __init__(self, config: pytest.Config, messages: Connection) -> None:
        self._config = config
        self._messages = messages

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed and self._config.option.durations is None:
            return  # of which nothing is shown
        to_send = self._config.hook.pytest_report_to_serializable
        self._messages.send(to_send(config=self._config, report=report))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._messages.send(nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        leave()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=1, metavar="N", help="processes that run tests")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    options = session.config.option
    if options.workers == 1 or options.collectonly or session.testsfailed:
        return None  # pytest's own loop
    files: dict[Path, list[pytest.Item]] = {}
    for item in session.items:
        files.setdefault(unit_of(item), []).append(item)
    if len(list(TASKS.iterdir())) > 1:
        raise pytest.UsageError(
            "--workers forks, but there are threads: a module of tests starts some at import, "
            "or OpenBLAS does without OMP_NUM_THREADS=1"
        )
    if any(item.get_closest_marker("hypothesis") for item in session.items):
        strategies.text().validate()  # reads all of Unicode: once, or in each worker
    are_slow = any(item.get_closest_marker("slow") for item in session.items)
    servers = fork_servers(options.workers) if are_slow else []
    units = [*files.values()]
    waiting = [number for number, tests in enumerate(units) if waits(tests)]
    queues = [numbers(waiting), numbers(sorted({*range(len(units))} - {*waiting}))]
    workers: list[Worker] = []
    sys.stdout.flush()
    sys.stderr.flush()
    for number in range(options.workers):
        receiving, sending = Pipe(duplex=False)
        if (pid := os.fork()) == 0:
            receiving.close()
            become_worker(session, number, sending)
            keep_one(servers, number)
            run(session, units, queues if number % 3 else queues[::-1])
            return True
        sending.close()
        workers.append(Worker(pid, receiving))
    for queue in queues:
        os.close(queue)
    try:
        follow(session, workers)
    finally:
        for worker in workers:
            end(worker)
        for server in servers:
            server.close()
    return True


def unit_of(item: pytest.Item) -> Path:
    """What one worker runs as a whole: the package that the test is in, if any, or its file."""
    package = item.getparent(pytest.Package)
    return package.path if package else item.path


def waits(tests: Sequence[pytest.Item]) -> bool:
    return tests[0].get_closest_marker("waits") is not None


def numbers(of: Sequence[int]) -> int:
    """A pipe to read these numbers from, each once, whoever reads."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:  # which has 64 KiB, for 16,000 files
        pipe.write(b"".join(map(NUMBER.pack, of)))
    return reading


def become_worker(session: pytest.Session, number: int, messages: Connection) -> None:
    config = session.config
    config.workerinput = {}  # type: ignore[attr-defined]  # by which plugins know a worker
    leave_to_other_workers(number, config.option.workers)
    plugins = config.pluginmanager
    plugins.unregister(name="terminalreporter")
    plugins.register(Sender(config, messages))
    # What tests print goes to a file: to one of each process.
    capture: Any = plugins.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()


def run(
    session: pytest.Session, units: Sequence[Sequence[pytest.Item]], queues: Sequence[int]
) -> None:
    """The tests of the files, or packages, whose numbers come next in the queues."""

    def items() -> Iterator[pytest.Item]:
        for queue in queues:
            while number := os.read(queue, NUMBER.size):
                yield from units[NUMBER.unpack(number)[0]]

    upcoming = items()
    item = next(upcoming, None)
    while item is not None:
        following = next(upcoming, None)  # by which pytest knows what to tear down
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following


def follow(session: pytest.Session, workers: Sequence[Worker]) -> None:
    """Shows what workers report, until the last one has ended."""
    hook, unfinished = session.config.hook, {item.nodeid: item for item in session.items}
    open_ends = [worker.messages for worker in workers]
    while open_ends:
        for messages in wait(open_ends):
            assert isinstance(messages, Connection)
            try:
                message = messages.recv()
            except EOFError:
                open_ends.remove(messages)
                continue
            if isinstance(message, str):
                item = unfinished.pop(message)
                hook.pytest_runtest_logfinish(nodeid=message, location=item.location)
            else:
                report = hook.pytest_report_from_serializable(config=session.config, data=message)
                hook.pytest_runtest_logreport(report=report)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
    for item in unfinished.values():
        hook.pytest_runtest_logreport(report=lost(item))


def lost(item: pytest.Item) -> pytest.TestReport:
    """A report of a test whose worker died at it or before."""
    reason = "Its worker died here, or at a test of this file before. To see more: --workers 1"
    return pytest.TestReport(item.nodeid, item.location, {}, "failed", reason, "call")


def end(worker: Worker) -> None:
    """Waits for it, and lets it end early where nobody has listened until its end."""
    worker.messages.close()
    if os.waitpid(worker.pid, os.WNOHANG) == (0, 0):
        os.kill(worker.pid, signal.SIGINT)
        os.waitpid(worker.pid, 0)
