"""What the service adds to store and sampler: pending asks, repeats of one split."""

import pytest

from tests.weights.memory_store import MemoryStore
from weights.search import Observation, Problem, Proposal, ProposalRequest, Shares
from weights.service import (
    EXPIRY_S,
    MAX_FITTED,
    MAX_PER_SESSION,
    MAX_SESSIONS,
    PendingAsks,
    WeightsService,
)

HALF, MOST = (0.5, 0.5), (0.7, 0.3)
FREE = Problem((0.0, 0.0), (1.0, 1.0))


class RecordingSampler:
    """Remembers what it was given, and proposes the same weights always."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.pending: list[Shares] = []

    def __call__(self, request: ProposalRequest) -> list[Proposal]:
        self.observations, self.pending = list(request.observations), list(request.pending)
        return [Proposal(HALF, "fixed")] * request.count


@pytest.fixture
def sampler() -> RecordingSampler:
    return RecordingSampler()


@pytest.fixture
def service(sampler: RecordingSampler) -> WeightsService:
    return WeightsService(MemoryStore(), sampler)


def test_asks_are_pending_until_they_are_told(
    service: WeightsService, sampler: RecordingSampler
) -> None:
    for _ in range(3):
        service.ask("s", FREE, 1, None)
    assert sampler.pending == [HALF, HALF]
    service.tell("s", FREE, [Observation((0.5 + 1e-9, 0.5 - 1e-9), 1.0)])
    service.tell("s", FREE, [Observation(MOST, 1.0)])
    service.ask("s", FREE, 1, None)
    assert sampler.pending == [HALF, HALF]
    service.delete("s")
    service.ask("s", FREE, 1, None)
    assert sampler.pending == []


def test_a_seeded_ask_depends_on_the_history_alone(
    service: WeightsService, sampler: RecordingSampler
) -> None:
    service.ask("s", FREE, 4, None)
    service.ask("s", FREE, 1, 7)
    assert sampler.pending == []


def test_measurements_of_one_split_are_repeats_of_one_point(
    service: WeightsService, sampler: RecordingSampler
) -> None:
    layered = Problem((0.0, 0.0), (1.0, 1.0), num_layers=10)
    for share in (0.68, 0.7, 0.72):
        service.tell("s", layered, [Observation((share, 1 - share), share)])
    service.ask("s", layered, 1, 1)
    assert {one.shares for one in sampler.observations} == {MOST}
    assert service.assess(service.find("s")).best.shares == MOST


def test_a_model_is_fitted_to_the_last_observations(
    service: WeightsService, sampler: RecordingSampler
) -> None:
    service.tell("s", FREE, [Observation(HALF, float(k)) for k in range(MAX_FITTED + 10)])
    service.ask("s", FREE, 1, None)
    assert [one.metric for one in sampler.observations] == list(range(10, MAX_FITTED + 10))


def test_a_search_is_assessed_once_until_it_goes_on(
    service: WeightsService,
) -> None:
    service.tell("s", FREE, [Observation(HALF, 1.0)])
    first = service.assess(service.find("s"))
    assert service.assess(service.find("s")) is first
    service.tell("s", FREE, [Observation(HALF, 3.0)])
    assert service.assess(service.find("s")) != first


def test_asks_about_another_number_of_nodes_do_not_count() -> None:
    pending = PendingAsks(lambda: 0.0)
    pending.add("s", [(0.5, 0.5, 0.0)])  # whole layers may leave a node without any
    pending.remove("s", [HALF])
    assert pending.shares_of("s", 2) == []
    assert pending.shares_of("s", 3) == [(0.5, 0.5, 0.0)]


def test_pending_asks_are_few_and_expire() -> None:
    now_s = 0.0
    pending = PendingAsks(lambda: now_s)
    pending.add("s", [HALF] * (MAX_PER_SESSION + 5))
    assert len(pending.shares_of("s", 2)) == MAX_PER_SESSION
    now_s = EXPIRY_S
    assert pending.shares_of("s", 2) == []
    for number in range(MAX_SESSIONS + 1):
        pending.add(str(number), [MOST])
    assert pending.shares_of("0", 2) == []
    assert pending.shares_of("1", 2) == [MOST]
