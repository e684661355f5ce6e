"""Fields that control thinking, and the template options they set."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from inference_api.web.fields import MAX_INTEGER, Body

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
# Templates that read an effort support low, medium and high.
_SUPPORTED = {"minimal": "low", "xhigh": "high", "max": "high"}

Options = Mapping[str, Mapping[str, Any]]  # template options, by the body's field that sets them


def effort_options(field: str, effort: Effort | None) -> Options:
    if effort is None or effort == "none":
        return {}
    return {field: {"reasoning_effort": _SUPPORTED.get(effort, effort)}}


def thinking_options(field: str, is_on: bool | None) -> Options:
    """Returns the option under each name that templates use for it."""
    return {} if is_on is None else {field: {"enable_thinking": is_on, "thinking": is_on}}


class Thinking(Body):
    """`budget_tokens` is ignored: thoughts are bounded only by the answer's limit."""

    advisory: ClassVar[frozenset[str]] = frozenset({"clear_thinking", "display"})

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: int | None = Field(None, ge=0, le=MAX_INTEGER)

    def options(self) -> Options:
        is_switch = self.type in ("enabled", "disabled")
        return thinking_options("thinking", self.type == "enabled") if is_switch else {}
