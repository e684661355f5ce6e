"""Every error of the weights service, with the status a client sees.

Any code may raise them. `routes` alone renders them, and also BodyTooLarge of
`common.http_routes`, StoreFailed of `common.errors` and NotInstalled of `common.numerics`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NotRequired

from common import startup
from common.errors import Error, WireError
from common.faults import path_of


class WeightsError(WireError):
    """Base of the tree. `str(error)` is the message for the client."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong field: its path, the fault, and pydantic's type of error."""

    loc: tuple[int | str, ...]
    msg: str
    type: str


class Problem(Error):
    """An error of the weights service; `detail` comes with an invalid request."""

    detail: NotRequired[list[Fault]]


class InvalidRequest(WeightsError):
    status = 422
    code = "invalid_request"

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{path_of(f.loc)}: {f.msg}" for f in faults))
        self.faults = tuple(faults)
        self.param = path_of(faults[0].loc[1:]) or None

    def body(self) -> Problem:
        return {**super().body(), "detail": list(self.faults)}


class NoPartition(WeightsError):
    """The bounds allow no split into whole layers."""

    status = 422
    code = "no_partition"


class SessionNotFound(WeightsError):
    status = 404
    code = "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id} not found; POST /weights_update starts one")


class SessionMismatch(WeightsError):
    status = 409
    code = "session_mismatch"
    # The message is the reference's text.
    summary = "/weights_update/: FAILURE, number of nodes are not the same for the session"

    def body(self) -> Error:
        return {**super().body(), "message": self.summary}


class DriveError(Exception):
    """An error for the user of `python -m weights drive`. Names the value, bound and remedy."""


class EngineUnusable(DriveError):
    """No split can be measured."""


class TrialFailed(DriveError):
    """This split could not be measured."""


class StartupError(startup.StartupError):
    service = "The weights service"
