"""One JSON line per request: who asked what of whom, how it went and how long it took.

Never prompts, answers, tokens or query strings.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from operator import attrgetter

from pydantic_core import to_json

from proxy.logs import AUDIT_LOGGER

audit_log = logging.getLogger(AUDIT_LOGGER)


class Outcome(StrEnum):
    """How an exchange ended."""

    COMPLETE = "complete"
    REFUSED = "refused"  # answered by the proxy itself
    CLIENT_GONE = "client_gone"
    CLIENT_STALLED = "client_stalled"
    UPSTREAM_BROKE = "upstream_broke"
    DRAINED = "drained"


@dataclass(slots=True)
class AuditRecord:
    """Filled in along the way. Event loop only.

    `queue_ms` is the time until the upstream sent its head, `ttft_ms` until its first byte of
    body; both None when it never came to that. `tokens_source` says how completion tokens were
    counted: by the upstream ("usage"), by stream events ("events"), or not at all, as the client
    left before the first byte; then those of the prompt are "estimated" from its bytes.
    """

    request_id: str
    method: str
    route: str
    team_id: str | None = None
    token_id: str | None = None
    model: str | None = None
    upstream: str | None = None
    status: int = 0
    outcome: Outcome = Outcome.COMPLETE
    reason: str | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    tokens_source: str | None = None
    queue_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float = 0.0
    started_s: float = field(default_factory=time.monotonic)

    def elapsed_ms(self) -> float:
        return round((time.monotonic() - self.started_s) * 1000, 3)

    def line(self) -> str:
        values = zip(_FIELDS, _values_of(self), strict=True)
        known = {name: value for name, value in values if value is not None}
        return to_json({"time": datetime.now(UTC).isoformat(), **known}).decode()


class AuditLog:
    """Writes the lines of one turn of the event loop at its end, in one go. Event loop only."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def write(self, record: AuditRecord) -> None:
        if not self._lines:
            asyncio.get_running_loop().call_soon(self.flush)
        self._lines.append(record.line())

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            # Not `info`, which looks up who called it, for nobody.
            text = "\n".join(lines)
            audit_log.handle(
                audit_log.makeRecord(AUDIT_LOGGER, logging.INFO, "", 0, text, (), None)
            )


# Not dataclasses.asdict: its deep copies cost more than checking the token does.
_FIELDS = tuple(item.name for item in fields(AuditRecord) if item.name != "started_s")
_values_of = attrgetter(*_FIELDS)
