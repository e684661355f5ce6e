"""The optimizer of a process: owns the state, and runs the solves that change it.

Readers use `state`, an immutable value, without a lock, and never wait for a solve. Writers queue
for one lock, which is held through a solve: an allocation must belong to the system it is stored
into, or two solves together could promise more cards than there are. Large solves take turns before
they take the lock; while one runs, all other writers take turns, too. Only a few may wait, for a
limited time, so that they do not occupy every thread.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

from common.stores import RecordStore
from common.turns import WAIT_S, TooManyQuestions, Turns
from optimizer.answer import Solution
from optimizer.errors import StateChanged
from optimizer.optimize import SolveOptions, optimize
from optimizer.spec import AllocationData, OptimizerSpec, ServerSpec
from optimizer.stabilize import Stability
from optimizer.state import SystemState, changes, from_records, next_state
from optimizer.system import System

logger = logging.getLogger(__name__)

# Servers times accelerators above which a solve may take seconds, or much memory.
SMALL_PAIRS, SMALL_MILP_PAIRS = 5_000, 500


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Settings for solves."""

    solve: SolveOptions
    min_gain_percent: float = 0.0
    hold_minutes: float = 0.0
    clock: Callable[[], float] = time.time


def is_large(system: System, flags: OptimizerSpec) -> bool:
    num_pairs = len(system.servers) * len(system.accelerators)
    return num_pairs > (SMALL_MILP_PAIRS if flags.milp_solver else SMALL_PAIRS)


class OptimizerService(ABC):
    """Base class of the services of both modes. Any thread."""

    def __init__(self, options: ServiceOptions, state: SystemState) -> None:
        self.options = options
        self._large_solves = Turns()  # they take seconds or much memory
        self._state = state  # replaced whole, never changed

    @property
    def state(self) -> SystemState:
        """Returns the state as of the last completed change."""
        return self._state

    @abstractmethod
    def optimize_one(self, system: System) -> Solution:
        """Solve a whole system by its own flags, and make it the state."""

    def turn(self, system: System, flags: OptimizerSpec) -> AbstractContextManager[None]:
        """Returns the context in which to solve the system. Entering raises TooManyQuestions."""
        return self._large_solves.taken() if is_large(system, flags) else nullcontext()

    def _solved(
        self, state: SystemState, changed_at_s: Mapping[str, float] | None = None
    ) -> tuple[SystemState, Solution]:
        """Returns the state with the answer's allocations as desired ones, and the answer's
        JSON."""
        start_s, system = time.perf_counter(), state.system
        options = self.options
        stability = Stability(
            options.clock(), changed_at_s, options.min_gain_percent, options.hold_minutes
        )
        answer = optimize(system, options.solve, stability)
        logger.info(
            "solved solver=%s servers=%d unallocated=%d cost=%.6g solve_ms=%.1f",
            answer.solver,
            len(system.servers),
            len(answer.unallocated),
            answer.total_cost,
            1000 * (time.perf_counter() - start_s),
        )
        desired, nothing = answer.desired(), AllocationData()
        system = system.with_servers(
            server.model_copy(update={"desired_alloc": desired.get(name, nothing)})
            for name, server in system.servers.items()
        )
        after = replace(state, system=system, allocated=frozenset(desired))
        return after, answer.dump(desired)


class StatelessService(OptimizerService):
    """Every request brings its own system. Reads show the last one solved."""

    def __init__(self, options: ServiceOptions) -> None:
        super().__init__(options, SystemState())

    def optimize_one(self, system: System) -> Solution:
        with self.turn(system, system.optimizer):
            self._state, body = self._solved(SystemState(system))
        return body


class StatefulService(OptimizerService):
    """Keeps a system between requests, and in a store.

    Raises StoreFailed, with the state unchanged, if a change cannot be saved, and TooManyQuestions
    if too many wait for long solves.
    """

    def __init__(self, store: RecordStore, options: ServiceOptions) -> None:
        super().__init__(options, from_records(store.load()))
        self._store = store
        self._saved: SystemState | None = self._state  # None if a commit failed
        self._lock = threading.Lock()
        self._behind_large_solves = Turns()

    def update(self, edit: Callable[[System], System]) -> tuple[System, System]:
        """Change the system. Returns it before and after. An error in `edit` changes nothing."""
        with self._writing():
            old = self._state
            new = next_state(old, edit(old.system), self.options.clock())
            self._commit(new)
        return old.system, new.system

    def replace_state(self, state: SystemState, is_expected: Callable[[SystemState], bool]) -> None:
        """Replace the whole state. Raises StateChanged."""
        with self._writing():
            if not is_expected(self._state):
                raise StateChanged()
            self._commit(state)

    def optimize(self, flags: OptimizerSpec) -> Solution:
        """Solve the system and store the allocations as desiredAlloc; servers without get none."""
        with self._solving(self._state.system, flags):
            state = replace(self._state, system=replace(self._state.system, optimizer=flags))
            solved, body = self._solved(state, state.changed_at_s)
            self._commit(solved)
        return body

    def optimize_one(self, system: System) -> Solution:
        with self._solving(system, system.optimizer):
            state = next_state(self._state, system, self.options.clock())
            solved, body = self._solved(state, state.changed_at_s)
            self._commit(solved)
        return body

    def apply_allocation(self) -> None:
        """Make desired allocations current. Keeps loads, and servers without a desired one."""
        with self._writing():
            state = self._state
            system = state.system.with_servers(
                _applied(server)
                for name, server in state.system.servers.items()
                if server.desired_alloc.accelerator or name in state.allocated
            )
            after = next_state(state, system, self.options.clock())
            self._commit(replace(after, allocated=state.allocated))

    def close(self) -> None:
        self._store.close()

    @contextmanager
    def _solving(self, system: System, flags: OptimizerSpec) -> Iterator[None]:
        write = self._locked if is_large(system, flags) else self._writing
        with self.turn(system, flags), write():
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        waits = self._large_solves.num_requests > 0
        with self._behind_large_solves.taken() if waits else nullcontext(), self._locked():
            yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=WAIT_S):
            raise TooManyQuestions()
        try:
            yield
        finally:
            self._lock.release()

    def _commit(self, state: SystemState) -> None:
        """Save the state, then publish it. The caller holds the lock.

        A commit that failed may have taken effect, for example if Redis's answer was lost. The next
        commit then reads the store again, so that it does not build on a refused change."""
        saved = self._saved or from_records(self._store.load())
        self._saved = None
        self._store.commit(changes(saved, state))
        self._saved = self._state = state


def _applied(server: ServerSpec) -> ServerSpec:
    current = server.desired_alloc.model_copy(update={"load": server.current_alloc.load})
    return server.model_copy(update={"current_alloc": current})
