"""What is known of models' steps, and of how long newcomers will wait, told to other threads.

Decode thread only.
"""

import time
from collections.abc import Callable, Iterable

from inference_api.scheduling.input_queue import InputQueue
from inference_api.scheduling.loaded_model import LoadedModel
from inference_api.scheduling.ttft_forecast import MAX_FORESEEN, Pace, TtftForecast, forecast

PERIOD_S = 0.25


class Outlook:
    """Looks at most every `PERIOD_S`, so that it costs steps next to nothing."""

    def __init__(
        self,
        input_queue: InputQueue,
        foresees: bool,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`foresees`: whether whoever waits takes a row of the model as soon as one is free."""
        self._input_queue = input_queue
        self._foresees = foresees
        self._wall_clock = wall_clock
        self._due_s = float("-inf")

    def look(self, models: Iterable[LoadedModel], now_s: float) -> None:
        """Publish the speed of these models' steps and, where it is foreseen, the wait."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + PERIOD_S
        for model in models:
            model.served.costs.publish(self._wall_clock())
            if self._foresees:
                self._input_queue.foresee(model.name, self._forecast(model))

    def _forecast(self, model: LoadedModel) -> TtftForecast | None:
        """None until there was a request, and a prompt has been timed."""
        served, running = model.served, model.rows.busy()
        waiting = self._input_queue.first_waiting(model.name, MAX_FORESEEN)
        newcomer, num_rows = served.traffic.newcomer(), len(model.rows.users)
        num_busy = min(num_rows, len(running) + len(waiting))
        prompt_token_s = served.costs.prompt_token_s(num_busy)
        if newcomer is None or prompt_token_s is None:
            return None
        totals = served.totals
        row_steps = totals.generated_tokens - totals.accepted_tokens
        pace = Pace(
            served.costs.turn_s(num_busy),
            prompt_token_s,
            model.planner.room_tokens(num_busy),
            totals.generated_tokens / row_steps if row_steps > 0 else 1.0,
        )
        return forecast(
            num_rows,
            [served.traffic.left(row) for row in running],
            [served.traffic.expected(each, served.max_seq_len) for each in waiting],
            newcomer,
            pace,
        )
