"""One JSON line per request: who asked what of whom, how it went and how long it took.

It never contains prompts, answers, tokens or query strings.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter

from pydantic_core import PydanticSerializationError, to_json

AUDIT_LOGGER = "proxy.audit"
audit_log = logging.getLogger(AUDIT_LOGGER)

WRITE_WITHIN_S = 0.01


class Outcome(StrEnum):
    """The end of an exchange."""

    COMPLETE = "complete"
    REFUSED = "refused"  # answered by the proxy itself
    CLIENT_GONE = "client_gone"
    CLIENT_STALLED = "client_stalled"
    UPSTREAM_BROKE = "upstream_broke"
    DRAINED = "drained"


@lru_cache(maxsize=2)
def _second(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@dataclass(slots=True)
class AuditRecord:
    """The facts in a request's line, filled in while it is served. Event loop only.

    `queue_ms` is the time until the upstream sent the head of its answer, `ttft_ms` until the first
    byte of its body; each is None if that never came. `tokens_source` is "usage" if the upstream
    counted the tokens, and "estimated" if some are estimated from bytes. `cost` is as exact as
    these, and None for a model without a price. `replica_cents` is the upstream's cost meanwhile,
    shared among the requests that it had; None if that is not known.
    """

    request_id: str
    method: str
    route: str
    team_id: str | None = None
    token_id: str | None = None
    model: str | None = None
    server: str | None = None
    upstream: str | None = None
    status: int = 0
    outcome: Outcome = Outcome.COMPLETE
    reason: str | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    tokens_source: str | None = None
    cost: float | None = None
    currency: str | None = None
    replica_cents: float | None = None
    queue_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float = 0.0
    started_ns: int = field(default_factory=time.monotonic_ns)
    ended_ns: int = 0  # since the epoch; 0: the request has not ended

    def elapsed_ms(self) -> float:
        return (time.monotonic_ns() - self.started_ns) // 1000 / 1000

    def line(self) -> str:
        values = zip(_FIELDS, _values_of(self), strict=True)
        fields = {name: value for name, value in values if value is not None}
        fields["outcome"] = str(self.outcome)
        seconds, part_ns = divmod(self.ended_ns or time.time_ns(), 10**9)
        line = {"time": f"{_second(seconds)}.{part_ns // 1000:06}+00:00", **fields}
        try:
            return to_json(line).decode()
        except PydanticSerializationError:
            # A client's JSON may hold half of a surrogate pair, which UTF-8 cannot encode.
            return json.dumps(line)

    def end(self) -> None:
        self.total_ms = self.elapsed_ms()
        self.ended_ns = time.time_ns()


class AuditLog:
    """Counts requests and writes their lines, together if they ended within WRITE_WITHIN_S of each
    other: one after the other they take twice the time. Event loop only."""

    def __init__(self, count: Callable[[AuditRecord], None]) -> None:
        self._count = count
        self._records: list[AuditRecord] = []

    def write(self, record: AuditRecord) -> None:
        """Ends the request of `record` now."""
        record.end()
        if not self._records:
            asyncio.get_running_loop().call_later(WRITE_WITHIN_S, self.flush)
        self._records.append(record)

    def flush(self) -> None:
        records, self._records = self._records, []
        if not records:
            return
        for record in records:
            self._count(record)
        # Not `info`, which looks up its caller, although nobody reads that.
        text = "\n".join([record.line() for record in records])
        audit_log.handle(audit_log.makeRecord(AUDIT_LOGGER, logging.INFO, "", 0, text, (), None))


# Not dataclasses.asdict: its deep copies cost more than checking the token does.
_NOT_LOGGED = {"started_ns", "ended_ns"}
_FIELDS = tuple(item.name for item in fields(AuditRecord) if item.name not in _NOT_LOGGED)
_values_of = attrgetter(*_FIELDS)
