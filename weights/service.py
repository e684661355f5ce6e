"""The weights service: joins a store and a sampler. Any thread. Keeps only pending proposals and
recent assessments itself."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from weights.errors import SessionNotFound
from weights.partition import snapped
from weights.samplers.assessment import assess
from weights.search import (
    Assessment,
    Observation,
    Problem,
    Proposal,
    ProposalRequest,
    Sampler,
    Shares,
)
from weights.session import Session, UpdateEffect, best_of, check_same
from weights.store import WeightStore

MAX_FITTED = 2000  # models are fitted to at most this many of the last observations
CACHED_ASSESSMENTS = 64

logger = logging.getLogger(__name__)


class WeightsService:
    def __init__(self, store: WeightStore, sampler: Sampler) -> None:
        self._store, self._sampler = store, sampler
        self._pending = PendingAsks()
        # A fit may take seconds, and pages that show a search poll it.
        self._assess = lru_cache(CACHED_ASSESSMENTS)(assess)

    def tell(
        self, session_id: str, problem: Problem, observations: Sequence[Observation]
    ) -> UpdateEffect:
        """Store all observations or none. Raises SessionMismatch and StoreFailed."""
        result = self._store.append(session_id, problem, observations)
        result = replace(result, session=self._with_allowed_best(result.session))
        self._pending.remove(session_id, [o.shares for o in observations])
        logger.info(
            "told session_id=%r new=%d observations=%d best=%.6g",
            session_id,
            len(observations),
            result.session.num_observations,
            result.session.best.metric,
        )
        return result

    def ask(
        self, session_id: str, problem: Problem, count: int, seed: int | None
    ) -> list[Proposal]:
        """Returns `count` proposals. With a seed they depend only on the seed, the problem and the
        history, not on pending trials. Raises SessionMismatch and StoreFailed."""
        session = self._store.find(session_id)
        observations: list[Observation] = []
        if session is not None:
            check_same(session, problem)
            observations = self.recent(replace(session, problem=problem))
        pending = (
            [] if seed is not None else self._pending.shares_of(session_id, problem.number_of_nodes)
        )
        rng = np.random.default_rng(None if seed is None else [seed, len(observations)])
        proposals = self._sampler(ProposalRequest(problem, observations, pending, count, rng))
        self._pending.add(session_id, [proposal.shares for proposal in proposals])
        return proposals

    def assess(self, session: Session) -> Assessment:
        """Raises StoreFailed."""
        return self._assess(session.problem, tuple(self.recent(session)))

    def find(self, session_id: str) -> Session:
        """Raises SessionNotFound and StoreFailed."""
        session = self._store.find(session_id)
        if session is None:
            raise SessionNotFound(session_id)
        return self._with_allowed_best(session)

    def _with_allowed_best(self, session: Session) -> Session:
        """Returns the session. If its bounds were tightened and exclude its best measurement,
        replaces that by the best recent measurement within the bounds."""
        problem = session.problem
        if problem.allows(session.best.shares):
            return session
        allowed = [each for each in self._last(session) if problem.allows(each.shares)]
        best = best_of(problem.direction, allowed) if allowed else session.best
        return replace(session, best=best)

    def recent(self, session: Session) -> list[Observation]:
        """Returns the last MAX_FITTED observations. Observations of the same whole layers get equal
        shares, so that they count as repeats."""
        return [
            replace(each, shares=snapped(each.shares, session.problem))
            for each in self._last(session)
        ]

    def _last(self, session: Session) -> list[Observation]:
        first = max(0, session.num_observations - MAX_FITTED)
        return self._store.observations(session.session_id, first, MAX_FITTED)

    def history(self, session_id: str, first: int, count: int) -> list[Observation]:
        return self._store.observations(session_id, first, count)

    def sessions(self, first: int, count: int) -> list[Session]:
        return [self._with_allowed_best(session) for session in self._store.sessions(first, count)]

    def delete(self, session_id: str) -> bool:
        self._pending.forget(session_id)
        return self._store.delete(session_id)

    def close(self) -> None:
        self._store.close()


EXPIRY_S = 3600.0
MAX_PER_SESSION = 64
MAX_SESSIONS = 1024
SAME = 1e-6  # largest difference of a share


class PendingAsks:
    """Remembers proposals that are not yet measured, so that parallel trials differ. Any thread.

    The process keeps them, not the store: losing them only makes running trials more alike. A
    proposal without a result is forgotten after an hour.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._asks: OrderedDict[str, list[tuple[float, Shares]]] = OrderedDict()

    def shares_of(self, session_id: str, number_of_nodes: int) -> list[Shares]:
        """Returns the pending shares for this number of nodes, which may change before the first
        result is told."""
        now = self._clock()
        with self._lock:
            pending = self._asks.get(session_id, [])
            return [
                shares
                for expiry, shares in pending
                if expiry > now and len(shares) == number_of_nodes
            ]

    def add(self, session_id: str, proposed: Iterable[Shares]) -> None:
        expiry = self._clock() + EXPIRY_S
        with self._lock:
            pending = self._asks.pop(session_id, []) + [(expiry, shares) for shares in proposed]
            self._asks[session_id] = pending[-MAX_PER_SESSION:]
            while len(self._asks) > MAX_SESSIONS:
                self._asks.popitem(last=False)

    def remove(self, session_id: str, measured: Iterable[Shares]) -> None:
        """Remove a pending proposal for each of `measured` with the same shares."""
        with self._lock:
            pending = self._asks.get(session_id, [])
            for shares in measured:
                if not pending:
                    break
                settled = next((a for a in pending if _is_same(a[1], shares)), None)
                if settled is not None:
                    pending.remove(settled)

    def forget(self, session_id: str) -> None:
        with self._lock:
            self._asks.pop(session_id, None)


def _is_same(a: Shares, b: Shares) -> bool:
    return len(a) == len(b) and all(abs(x - y) <= SAME for x, y in zip(a, b, strict=True))
