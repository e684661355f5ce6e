"""Converts a server's `usage` object, in any known dialect, to `ServerUsage`. Pure.

A figure may have several names. The first name with a number that is not zero counts.
"""

from collections.abc import Mapping
from typing import Any, TypeGuard

from benchmarking.records import MAX_NUMBER, ServerUsage

KEYS = {
    "prompt_tokens": ("prompt_tokens_count", "prompt_tokens"),
    "completion_tokens": ("completion_tokens_count", "completion_tokens"),
    "total_tokens": ("total_tokens_count", "total_tokens"),
    "ttft_s": ("time_to_first_token", "time_to_first_response"),
    "end_to_end_latency_s": ("total_latency", "model_execution_time"),
    "output_tokens_per_s": (
        "completion_tokens_after_first_per_sec",
        "completion_tokens_per_sec_after_first_response",
        "throughput_after_first_token",
    ),
    "total_tokens_per_s": ("total_tokens_per_sec",),
    "first_ten_tokens_per_s": ("completion_tokens_after_first_per_sec_first_ten",),
    "batch_size_used": ("batch_size_used",),
    "acceptance_rate": ("acceptance_rate",),
    "switching_time_s": ("switching_time", "model_load_time"),
    "queue_s": ("queue_time",),
    "tokens_per_step": ("tokens_per_step",),
}
COUNTS = {"prompt_tokens", "completion_tokens", "total_tokens", "batch_size_used"}


def server_usage(usage: Mapping[str, Any]) -> ServerUsage:
    """Returns the figures of a `usage` object, without values that are not plausible numbers."""
    figures: dict[str, Any] = {name: _first(usage, keys) for name, keys in KEYS.items()}
    for name in COUNTS:
        figures[name] = None if figures[name] is None else round(figures[name])
    tokens, seconds = figures["total_tokens"], figures["end_to_end_latency_s"]
    if figures["total_tokens_per_s"] is None and tokens and seconds:
        figures["total_tokens_per_s"] = tokens / seconds
    details = usage.get("completion_tokens_details")
    thought = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return ServerUsage(
        **figures,
        acceptance_by_depth=_shares(usage.get("acceptance_by_depth")),
        reasoning_tokens=round(thought) if _is_number(thought) else None,
    )


def _first(usage: Mapping[str, Any], keys: tuple[str, ...]) -> float | None:
    numbers = [usage[key] for key in keys if _is_number(usage.get(key))]
    return next((number for number in numbers if number), numbers[0] if numbers else None)


def _shares(value: object) -> tuple[float, ...]:
    return tuple(value) if isinstance(value, list) and all(map(_is_number, value)) else ()


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= MAX_NUMBER  # False for NaN
