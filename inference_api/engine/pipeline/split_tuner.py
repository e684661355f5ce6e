"""SPLIT=auto: tries splits while no row is busy, one at a time, until trials stop paying.

Decode thread only. Without work for QUIET_S, trials follow one another. Under a light load, whose
pauses are shorter, there is one in the first pause after PATIENCE_S without any: layers cannot move
while a row has its keys and values in them. Requests that come during a trial wait for its end: for
all ranks to load their layers, and for MEASURE_S or BRIEF_MEASURE_S.
"""

import logging
import time
from collections.abc import Callable
from typing import Protocol

from inference_api.engine.pipeline.split_search import SearchFailed, SplitSearch
from inference_api.engine.pipeline.splits import Split

logger = logging.getLogger(__name__)

QUIET_S = 2.0  # without work before a trial
PATIENCE_S = 20.0  # without a trial, after which a shorter pause will do
MEASURE_S, BRIEF_MEASURE_S = 1.0, 0.3  # in a quiet time, and in a shorter pause
RETRY_S = 60.0  # after the service did not answer
MAX_TRIALS = 30


class Splittable(Protocol):
    """A model over several ranks."""

    split: Split
    max_rows: int

    def set_split(self, split: Split) -> None:
        """See `PipelineRunner`."""

    def tokens_per_s(self, seconds: float, num_rows: int) -> float:
        """Of so many rows that decode."""


class SplitTuner:
    def __init__(self, search: SplitSearch, clock: Callable[[], float] = time.monotonic) -> None:
        self._search = search
        self._clock = clock
        self._quiet_from_s = self._not_before_s = self._trial_s = clock()
        self._num_trials = 0
        self._is_over = False

    def worked(self) -> None:
        """There was work just now."""
        self._quiet_from_s = self._clock() + QUIET_S

    def turn(self, model: Splittable) -> bool:
        """A trial, if it is time for one. Returns whether layers were loaded anew."""
        now_s = self._clock()
        is_quiet = now_s >= self._quiet_from_s
        is_time = now_s >= self._not_before_s and (is_quiet or now_s >= self._trial_s + PATIENCE_S)
        if self._is_over or not is_time:
            return False
        try:
            if self._num_trials >= MAX_TRIALS or self._search.has_converged():
                return self._settle(model)
            return self._try_one(model, MEASURE_S if is_quiet else BRIEF_MEASURE_S)
        except SearchFailed as error:
            logger.warning("SPLIT=auto stays at %s for now: %s", _dashed(model.split), error)
            self._not_before_s = self._clock() + RETRY_S
            return False

    def _settle(self, model: Splittable) -> bool:
        best, self._is_over = self._search.best(), True
        logger.info("SPLIT=auto ends with %s", _dashed(best))
        return self._put(model, best)

    def _try_one(self, model: Splittable, seconds: float) -> bool:
        split, _ = self._search.ask()
        self._put(model, split)
        tokens_per_s = model.tokens_per_s(seconds, model.max_rows)
        self._num_trials += 1
        self._trial_s = self._clock()
        logger.info("SPLIT=auto measured %.1f tokens/s with %s", tokens_per_s, _dashed(split))
        self._search.tell(split, tokens_per_s)
        return True  # rows were written to in any case

    def _put(self, model: Splittable, split: Split) -> bool:
        if split == model.split:
            return False
        model.set_split(split)
        return True


def _dashed(split: Split) -> str:
    return "-".join(map(str, split))
