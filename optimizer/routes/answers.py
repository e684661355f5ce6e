"""The answers of failures. Other answers are defined beside the code that computes them."""

from typing import NotRequired

from optimizer.inferno_json import JsonObject

NO_ROUTE = "text/plain"  # for a path with one name instead of two


class FaultAnswer(JsonObject):
    path: str
    message: str


class Problem(JsonObject):
    """An error of the optimizer; `faults` come with status 400."""

    message: str
    faults: NotRequired[list[FaultAnswer]]


def problems(*statuses: int) -> dict[int, type[Problem]]:
    """Returns the descriptions of an operation's failures, by status."""
    return dict.fromkeys(statuses, Problem)
