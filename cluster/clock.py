"""The controller's clock, which goes on evenly when the machine's is set. Any thread."""

import time

_BEGUN_S = time.time() - time.monotonic()


def steady_s() -> float:
    """Returns seconds since 1970, by the machine's clock as it was set when this process began."""
    return _BEGUN_S + time.monotonic()


def of_day_s(at_s: float) -> float:
    """Returns what a moment is by the machine's clock as it is set now."""
    return at_s + round(time.time() - steady_s())
