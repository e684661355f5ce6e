"""The answers of the routes' failures. The other answers stand beside what computes them."""

from typing import NotRequired

from optimizer.inferno_json import JsonObject

NO_ROUTE = "text/plain"  # for a path with one name where there should be two


class FaultAnswer(JsonObject):
    path: str
    message: str


class Problem(JsonObject):
    """Every error of the optimizer; `faults` come with status 400."""

    message: str
    faults: NotRequired[list[FaultAnswer]]


def problems(*statuses: int) -> dict[int, type[Problem]]:
    """Returns the answers of an operation's failures, by status."""
    return dict.fromkeys(statuses, Problem)
