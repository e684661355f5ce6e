"""Errors that stop a benchmark, or one row of it. A request that fails is recorded instead.

BenchmarkError
├── InvalidConfig        config.yaml or model_configs cannot be used; lists every fault found
├── RowRefused           this row cannot be run; the others can
│   ├── TargetUnusable       the server does not answer, or refuses what the row needs
│   └── LoadProcessFailed    the process that sends the load has died
├── InvalidResults       a folder does not hold the results of a run
├── Unfit                the measurements do not determine the model's parameters
├── OptimizerUnusable    the optimizer does not answer, or refuses what it was sent
└── NotWritable          results cannot be written where they should go
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class BenchmarkError(Exception):
    """Base of the tree. `str(error)` is the message for the user."""


class InvalidConfig(BenchmarkError):
    def __init__(self, source: object, faults: Sequence[str]) -> None:
        super().__init__(f"{source}:\n" + "\n".join(f"  - {fault}" for fault in faults))
        self.faults = tuple(faults)


class RowRefused(BenchmarkError):
    pass


class TargetUnusable(RowRefused):
    pass


class LoadProcessFailed(RowRefused):
    def __init__(self, exit_status: int) -> None:
        super().__init__(f"the load process ended with exit status {exit_status}")


class InvalidResults(BenchmarkError):
    pass


class Unfit(BenchmarkError):
    pass


class OptimizerUnusable(BenchmarkError):
    pass


class NotWritable(BenchmarkError):
    def __init__(self, error: OSError) -> None:
        super().__init__(f"{error.filename}: {error.strerror}; choose a folder that can be written")


@contextmanager
def writing() -> Iterator[None]:
    """Raises an OSError of its block as NotWritable."""
    try:
        yield
    except OSError as error:
        raise NotWritable(error) from error
