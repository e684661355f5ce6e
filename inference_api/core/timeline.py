"""Records when one generation's tokens arrive. Belongs to the generation's request thread."""

from collections.abc import Callable

from inference_api.core.draft_depths import DraftDepths
from inference_api.core.record import GenerationRecord
from inference_api.errors import HearthError
from inference_api.request import GenerationRequest, Switch

FIRST_TOKENS = 10  # the early rate covers this many tokens after the first


class Timeline:
    """One generation's times, in monotonic seconds. `on_gap` gets every inter-token latency."""

    def __init__(self, now_s: float, on_gap: Callable[[float], None]) -> None:
        self._begun_s = now_s
        self._on_gap = on_gap
        self._admitted_s = now_s
        self._first_s: float | None = None
        self._last_s = now_s
        self._early_s: float | None = None  # arrival of the last token of the early rate
        self._batch_sizes = 0
        self._reused_tokens = 0
        self.switch: Switch | None = None  # the switch that the request waited for
        self._num_steps = 0  # steps that brought tokens
        self.depths = DraftDepths()  # counts verified drafts
        self.completion_tokens = 0

    def tokens(self, now_s: float, num_tokens: int, batch_size: int) -> None:
        """Record `num_tokens` tokens from one step of `batch_size` rows. They share the time since
        the previous tokens equally."""
        num_gaps = num_tokens
        if self._first_s is None:
            self._first_s = self._last_s = now_s
            num_gaps -= 1
        for _ in range(num_gaps):
            self._on_gap((now_s - self._last_s) / num_tokens)
        self._last_s = now_s
        self._num_steps += 1
        self._batch_sizes += batch_size * num_tokens
        self.completion_tokens += num_tokens
        if self._early_s is None and self.completion_tokens > FIRST_TOKENS:
            self._early_s = now_s

    def admitted(self, at_s: float, reused_tokens: int, switch: Switch | None = None) -> None:
        """Record that the request got a row, and `reused_tokens` of its prompt from the cache."""
        self._admitted_s = at_s
        self._reused_tokens = reused_tokens
        self.switch = switch

    def record(
        self, request: GenerationRequest, finish_reason: str, error: HearthError | None = None
    ) -> GenerationRecord:
        first_s = self._last_s if self._first_s is None else self._first_s
        num_tokens = self.completion_tokens
        early_tokens = min(num_tokens - 1, FIRST_TOKENS)
        early_end_s = self._last_s if self._early_s is None else self._early_s
        return GenerationRecord(
            caller=request.caller,
            session_id=request.output.session_id,
            model=request.model,
            prompt_tokens=len(request.prompt_tokens),
            reused_tokens=self._reused_tokens,
            completion_tokens=num_tokens,
            begun_s=self._begun_s,
            queue_s=self._admitted_s - self._begun_s,
            prefill_s=max(0.0, first_s - self._admitted_s),
            decode_s=self._last_s - first_s,
            ttft_s=first_s - self._begun_s,
            e2e_s=self._last_s - self._begun_s,
            finish_reason=finish_reason,
            tokens_per_s=_rate(num_tokens - 1, self._last_s - first_s),
            early_tokens_per_s=_rate(early_tokens, early_end_s - first_s),
            mean_batch_size=self._batch_sizes / max(1, num_tokens),
            depths=self.depths.copy(),
            tokens_per_step=num_tokens / self._num_steps if self._num_steps else None,
            switch=self.switch,
            error=error,
        )


def _rate(tokens: int, seconds: float) -> float | None:
    """Returns tokens per second; None if no time has passed."""
    return tokens / seconds if tokens > 0 and seconds > 0 else None
