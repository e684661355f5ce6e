"""SPLIT=auto: tries splits while no row is busy, one at a time, until trials stop paying.

Decode thread only; the service is asked on a thread of its own. Without work for QUIET_S, trials
follow one another. Under a light load, whose pauses are shorter, there is one in the first pause
after PATIENCE_S without any: layers cannot move while a row has its keys and values in them.
Requests that come during a trial wait for its end: for all ranks to load their layers, and for
MEASURE_S or BRIEF_MEASURE_S.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

from inference_api.pipeline.split_search import SearchFailed, SplitSearch
from inference_api.pipeline.splits import Split

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
        """Measure the speed of so many rows that decode."""


class Proposal(NamedTuple):
    split: Split
    is_best: bool  # the best of all splits: further trials do not pay


class SplitTuner:
    def __init__(
        self,
        search: SplitSearch,
        clock: Callable[[], float] = time.monotonic,
        executor: Executor | None = None,
    ) -> None:
        """`executor` asks the search; the default has one thread."""
        self._search = search
        self._clock = clock
        self._executor = executor or ThreadPoolExecutor(1, "split-search")
        self._quiet_from_s = self._not_before_s = self._trial_s = clock()
        self._proposed: Future[Proposal] | None = None
        self._untold: tuple[Split, float] | None = None  # the executor's while it proposes
        self._num_trials = 0
        self._is_over = False

    def worked(self) -> None:
        """There was work just now."""
        self._quiet_from_s = self._clock() + QUIET_S

    def turn(self, model: Splittable) -> bool:
        """A trial, if it is time for one and its split is known. Never waits for the service.
        Returns whether layers were loaded anew."""
        now_s = self._clock()
        is_quiet = now_s >= self._quiet_from_s
        is_time = now_s >= self._not_before_s and (is_quiet or now_s >= self._trial_s + PATIENCE_S)
        if self._is_over or not is_time:
            return False
        proposed = self._proposed = self._proposed or self._executor.submit(self._propose)
        if not proposed.done():
            return False
        self._proposed = None
        try:
            split, self._is_over = proposed.result()
        except SearchFailed as error:
            logger.warning("SPLIT=auto stays at %s for now: %s", _dashed(model.split), error)
            self._not_before_s = self._clock() + RETRY_S
            return False
        if self._is_over:
            logger.info("SPLIT=auto ends with %s", _dashed(split))
            return self._put(model, split)
        return self._try(split, model, MEASURE_S if is_quiet else BRIEF_MEASURE_S)

    def close(self) -> None:
        """End the thread: it may still wait for an answer."""
        self._executor.shutdown(cancel_futures=True)

    def _propose(self) -> Proposal:
        """On the executor's thread. Raises SearchFailed."""
        if self._untold is not None:
            self._search.tell(*self._untold)
            self._untold = None
        if self._num_trials >= MAX_TRIALS or self._search.has_converged():
            return Proposal(self._search.best(), is_best=True)
        return Proposal(self._search.ask()[0], is_best=False)

    def _try(self, split: Split, model: Splittable, seconds: float) -> bool:
        self._put(model, split)
        tokens_per_s = model.tokens_per_s(seconds, model.max_rows)
        self._num_trials += 1
        self._trial_s = self._clock()
        logger.info("SPLIT=auto measured %.1f tokens/s with %s", tokens_per_s, _dashed(split))
        self._untold = split, tokens_per_s
        self._proposed = self._executor.submit(self._propose)
        return True  # rows were written to in any case

    def _put(self, model: Splittable, split: Split) -> bool:
        if split == model.split:
            return False
        model.set_split(split)
        return True


def _dashed(split: Split) -> str:
    return "-".join(map(str, split))
