"""Writes one log line for each generation."""

import logging

from inference_api.core.record import GenerationRecord, Observer

logger = logging.getLogger(__name__)


class LogLines(Observer):
    """Logs each generation at its end. Immutable; any thread may use it."""

    def __init__(self, names_model: bool) -> None:
        """`names_model` says whether the lines name the model."""
        self._names_model = names_model

    def ended(self, record: GenerationRecord) -> None:
        fields = {
            "request_id": record.caller.request_id,
            "team_id": record.caller.team_id or "-",
            "session_id": record.session_id,
            "prompt_tokens": record.prompt_tokens,
            "completion_tokens": record.completion_tokens,
            "queue_ms": _ms(record.queue_s),
            "ttft_ms": _ms(record.ttft_s),
            "itl_ms": _ms(1 / record.tokens_per_s if record.tokens_per_s else 0.0),
            "finish_reason": record.finish_reason,
        }
        if record.error is not None:
            fields["error"] = record.error.code
        if self._names_model:
            fields["model"] = record.model
        if record.caller.left_aside:
            fields["ignored"] = ",".join(record.caller.left_aside)
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        logger.info("generation %s", text, extra=fields)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
