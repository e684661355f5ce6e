"""Counts of drafts by depth, against the definitions written out."""

import random

import pytest

from inference_api.core.draft_depths import DraftDepths


def depths_of(*drafts: tuple[int, int]) -> DraftDepths:
    depths = DraftDepths()
    for drafted, accepted in drafts:
        depths.add(drafted, accepted)
    return depths


def test_nothing_drafted_has_no_depths() -> None:
    depths = DraftDepths()
    assert depths.acceptance_by_depth == depths.drafted_by_depth == []
    assert (depths.drafted_tokens, depths.accepted_tokens) == (0, 0)


def test_a_depth_counts_only_the_drafts_that_were_as_deep() -> None:
    depths = depths_of((3, 3), (1, 1), (1, 0), (2, 1))
    assert depths.drafted_by_depth == [4, 2, 1]
    assert depths.accepted_by_depth == [3, 1, 1]
    assert depths.acceptance_by_depth == [0.75, 0.5, 1.0]


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_the_definition(seed: int) -> None:
    rng = random.Random(seed)
    drafts = [(k := rng.randint(1, 9), rng.randint(0, k)) for _ in range(rng.randint(1, 40))]
    depths = depths_of(*drafts)
    for depth, share in enumerate(depths.acceptance_by_depth, 1):
        as_deep = [accepted for drafted, accepted in drafts if drafted >= depth]
        assert share == sum(accepted >= depth for accepted in as_deep) / len(as_deep)
    assert len(depths.acceptance_by_depth) == max(drafted for drafted, _ in drafts)
    assert depths.drafted_tokens == sum(drafted for drafted, _ in drafts)
    assert depths.accepted_tokens == sum(accepted for _, accepted in drafts)


def test_a_copy_stays_as_it_was() -> None:
    depths = depths_of((2, 1))
    copy = depths.copy()
    depths.add(2, 2)
    assert copy.acceptance_by_depth == [1.0, 0.0]
