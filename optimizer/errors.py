"""Every error of the optimizer, with the status a client sees.

    OptimizerError
    ├── InvalidRequest      400   the body does not parse, or fields are mistyped or out of bounds
    ├── NotFound            404   no entity of that kind has that name
    └── StateChanged        412   If-Match names a state that is no longer current

    BodyTooLarge   413, of `common.http_routes`: the body exceeds the limit
    StoreFailed    503, of `common.errors`: the store did not take a change, nor did memory
    NotInstalled   501, of `common.numerics`: this machine has no scipy
    StartupError   the process cannot start; lists every fault found

A server without an allocation is not an error: the answer gives the reason for each server.
Raise them anywhere; `routes` renders them, once, at the edge.
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
