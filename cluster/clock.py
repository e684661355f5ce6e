"""The controller's clock, which does not jump when the machine's clock is set. Any thread."""

import time

_BEGUN_S = time.time() - time.monotonic()


def steady_s() -> float:
    """Returns the seconds since 1970, by the machine's clock as set when this process began."""
    return _BEGUN_S + time.monotonic()


def of_day_s(at_s: float) -> float:
    """Converts a moment of `steady_s` to the machine's clock as set now."""
    return at_s + round(time.time() - steady_s())
