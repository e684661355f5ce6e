"""Faults that keep a process from starting: all of them in one message, each with its remedy."""

from collections.abc import Sequence

from pydantic import ValidationError


class StartupError(Exception):
    """The process cannot start. Each service has a subclass that names it."""

    service: str

    def __init__(self, faults: Sequence[str]) -> None:
        lines = "\n".join(f"  - {fault}" for fault in faults)
        super().__init__(f"{self.service} cannot start:\n{lines}")
        self.faults = tuple(faults)


def faults_of(error: ValidationError) -> list[str]:
    """A line for each setting that is wrong, by its name; no value, as it may be a secret."""
    return [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
