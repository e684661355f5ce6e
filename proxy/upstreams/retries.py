"""A budget of retries, as a share of all requests, so that retries do not double an outage."""

RETRY_SHARE = 0.2
MAX_SAVED_RETRIES = 100.0


class RetryBudget:
    """Each request earns a share of a retry, and each retry spends one. Event loop only."""

    def __init__(self) -> None:
        self._saved = MAX_SAVED_RETRIES

    def note_request(self) -> None:
        self._saved = min(MAX_SAVED_RETRIES, self._saved + RETRY_SHARE)

    def try_spend(self) -> bool:
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
