"""What commands share: exit statuses, types of arguments, and Ctrl-C."""

import math
import re
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import wraps
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from benchmarking.analysis.goodput import Slo
from benchmarking.records import Run
from benchmarking.settings import checked_base, checked_header

OK, FAILURES, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
RESULTS_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)

T = TypeVar("T")


class FiniteRange(click.FloatRange):
    """A range that refuses nan, which click takes for a number within any range."""

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, context))
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, context)
        return number


class Checked(click.ParamType[Any]):
    """Converts a value with `check`. It may be a secret, so no message may have a part of it."""

    def __init__(self, name: str, check: Callable[[str], Any]) -> None:
        self.name = name
        self._check = check

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Any:
        try:
            return self._check(value)
        except ValueError as error:
            self.fail(str(error), param, context)


HEADERS = click.option(
    "--header",
    "headers",
    type=Checked("NAME=VALUE", checked_header),
    multiple=True,
    help="Sent with every request, and written nowhere. May be repeated.",
)
URL = click.argument("base", metavar="URL", type=Checked("URL", checked_base))
SECONDS = FiniteRange(1, 86_400)


def is_given(option: str) -> bool:
    """Returns whether an option of the running command is on the command line."""
    source = click.get_current_context().get_parameter_source(option)
    return source is ParameterSource.COMMANDLINE


def shown_argv() -> list[str]:
    """Returns the command line without the values of headers."""
    shown: list[str] = []
    for argument in sys.argv:
        if shown[-1:] == ["--header"] or argument.startswith("--header="):
            argument = re.sub(r"(?s)^((?:--header=)?[^=]*=).*", r"\1***", argument)
        shown.append(argument)
    return shown


def slo_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds options for upper bounds on each request's latencies. The command gets an `Slo`."""

    @wraps(command)
    def with_slo(**arguments: Any) -> None:
        bounds = {name: arguments.pop(name) for name in ("ttft_ms", "itl_ms", "e2e_ms")}
        command(slo=Slo(**bounds), **arguments)

    for name in ("--ttft-ms", "--itl-ms", "--e2e-ms"):
        with_slo = click.option(name, type=FiniteRange(0, min_open=True))(with_slo)
    return with_slo


def until_interrupted(work: Callable[[], T], stop: Event) -> T:
    """Runs `work` in another thread. Ctrl-C or SIGTERM sets `stop`, upon which `work` must end."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        while not running.done():
            try:
                wait((running,))
            except KeyboardInterrupt:
                click.echo("stopping: what was measured is being written", err=True)
                stop.set()
    signal.signal(signal.SIGTERM, before)
    return running.result()


def exit_status(run: Run) -> int:
    """Returns OK if every row ran and every request completed, else FAILURES."""
    has_failures = (
        bool(run.config.get("refused_rows"))
        or any(row.error is not None for row in run.rows)
        or any(record.failure is not None for record in run.records)
    )
    return FAILURES if has_failures else OK
