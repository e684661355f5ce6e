"""Drafts of several sources are one tree: the union of their branches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api.core.rows import Draft
from inference_api.speculation.scheduler import merged

Branch = tuple[int, ...]


def branches(draft: Draft) -> list[Branch]:
    """Of each guess the tokens from the root to it."""
    found: list[Branch] = []
    for at, token_id in enumerate(draft.token_ids):
        parent = at - 1 if draft.parents is None else draft.parents[at]
        found.append((*(found[parent] if parent >= 0 else ()), token_id))
    return found


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """A random tree whose siblings differ, its likeliest guesses first."""
    count = draw(st.integers(0, 8))
    nodes: list[tuple[float, Branch]] = []
    known: dict[Branch, float] = {(): 1.0}
    for _ in range(count):
        before = draw(st.sampled_from(sorted(known)))
        branch = (*before, draw(st.integers(0, 3)))
        if branch not in known:
            known[branch] = known[before] * draw(st.floats(0.05, 1.0))
            nodes.append((known[branch], branch))
    nodes.sort(key=lambda node: -node[0])
    places = {branch: at for at, (_, branch) in enumerate(nodes)}
    return Draft(
        [branch[-1] for _, branch in nodes],
        [places.get(branch[:-1], -1) for _, branch in nodes],
        [likelihood for likelihood, _ in nodes],
    )


@given(st.lists(drafts(), min_size=1, max_size=3))
def test_every_branch_is_there_once(sources: list[Draft]) -> None:
    found = branches(merged(sources))
    assert sorted(found) == sorted({branch for each in sources for branch in branches(each)})


@given(st.lists(drafts(), min_size=1, max_size=3), st.integers(0, 20))
def test_first_guesses_are_a_draft_and_no_likelier_ones_follow(
    sources: list[Draft], count: int
) -> None:
    draft = merged(sources)
    assert list(draft.likelihoods) == sorted(draft.likelihoods, reverse=True)
    cut = draft.first(count)
    assert branches(cut) == branches(draft)[:count]


def test_what_two_have_is_as_likely_as_the_surer_one_says() -> None:
    chain = Draft([1, 2], None, [0.5, 0.4])
    tree = Draft([1, 3, 2], [-1, -1, 0], [0.6, 0.3, 0.12])
    draft = merged([chain, tree])
    assert branches(draft) == [(1,), (1, 2), (3,)]
    assert draft.likelihoods == pytest.approx([0.6, 0.6 * 0.8, 0.3])


def test_single_draft_stays_as_it_is() -> None:
    chain = Draft([1, 2], None, [0.5, 0.4])
    assert merged([chain]) is chain
