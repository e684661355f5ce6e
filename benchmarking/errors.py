"""Errors that stop a benchmark, or one row of it. A request that fails is recorded instead."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pydantic import ValidationError

from common.faults import capped, fault_of


class BenchmarkError(Exception):
    """Base class of these errors. `str(error)` is the message for the user."""


class InvalidConfig(BenchmarkError):
    def __init__(self, source: object, faults: Sequence[str]) -> None:
        super().__init__(f"{source}:\n" + "\n".join(f"  - {fault}" for fault in capped(faults)))
        self.faults = tuple(faults)


class RowRefused(BenchmarkError):
    """This row cannot be run; the others can."""


class TargetUnusable(RowRefused):
    """The server does not answer, or refuses what the row needs."""


class InvalidResults(BenchmarkError):
    """A folder does not hold the results of a run."""


def unreadable(path: object, error: Exception, model: object = None) -> InvalidResults:
    """Returns the error for a file that cannot be read as a `model`, with its first fault."""
    fault = str(error)
    if isinstance(error, ValidationError):
        fault = fault_of(error.errors(include_url=False)[0], model)
    return InvalidResults(f"{path}: {fault}")


class Unfit(BenchmarkError):
    """The measurements do not determine the model's parameters."""


class OptimizerUnusable(BenchmarkError):
    """The optimizer does not answer, or refuses what it was sent."""


class NotWritable(BenchmarkError):
    def __init__(self, error: OSError) -> None:
        super().__init__(f"{error.filename}: {error.strerror}; choose a folder that can be written")


@contextmanager
def writing() -> Iterator[None]:
    """Raises NotWritable for an OSError in its block."""
    try:
        yield
    except OSError as error:
        raise NotWritable(error) from error
