"""Every error of the optimizer, with the status a client sees.

A server without an allocation is not an error: the answer gives the reason for each server.
Any code may raise them. `routes` alone renders them, and also BodyTooLarge of
`common.http_routes`, StoreFailed of `common.errors` and NotInstalled of `common.numerics`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from common import startup


class OptimizerError(Exception):
    """Base of the tree. `str(error)` is the message for the client."""

    status = 500


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong field. `path` is like `system.serverData.servers[3].minNumReplicas`."""

    path: str
    message: str


class InvalidRequest(OptimizerError):
    status = 400

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(
            "; ".join(f"{f.path}: {f.message}" if f.path else f.message for f in faults)
        )
        self.faults = tuple(faults)


class NotFound(OptimizerError):
    """`kind` is the reference's word: accelerator, model, service class, server, ..."""

    status = 404

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name} not found")


class StateChanged(OptimizerError):
    status = 412

    def __init__(self) -> None:
        super().__init__("the state changed since that ETag; GET /state again and merge")


class StartupError(startup.StartupError):
    service = "The optimizer"
