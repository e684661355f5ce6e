"""Drafts of several sources for one row, as one tree."""

from collections.abc import Sequence
from typing import NamedTuple

from inference_api.core.rows import Draft


class Merged(NamedTuple):
    """A merged draft, and the drafts that its guesses come from.

    `owners`: for each guess, the first draft that has it. `places`: for each draft, the indices of
    its guesses in the merged one.
    """

    draft: Draft
    owners: Sequence[int]
    places: Sequence[Sequence[int]]


def merged(drafts: Sequence[Draft]) -> Merged:
    """Returns the union of their branches. A guess in several drafts gets the highest of their
    likelihoods, given its predecessor."""
    with_guesses = [owner for owner, draft in enumerate(drafts) if draft.token_ids]
    if len(with_guesses) == 1:
        [owner] = with_guesses
        count = len(drafts[owner].token_ids)
        places = [range(count) if at == owner else range(0) for at in range(len(drafts))]
        return Merged(drafts[owner], [owner] * count, places)
    nodes: dict[tuple[int, int], int] = {}  # indices by parent and token, in the order of arrival
    surest: list[float] = []  # likelihoods, given what they follow
    owners: list[int] = []
    places_of: list[list[int]] = []
    for owner, draft in enumerate(drafts):
        own: list[int] = []
        for at, token_id in enumerate(draft.token_ids):
            before = at - 1 if draft.parents is None else draft.parents[at]
            parent, of_parent = (
                (own[before], draft.likelihoods[before]) if before >= 0 else (-1, 1.0)
            )
            given_parent = draft.likelihoods[at] / of_parent if of_parent > 0.0 else 0.0
            node = nodes.setdefault((parent, token_id), len(nodes))
            if node == len(surest):
                surest.append(given_parent)
                owners.append(owner)
            surest[node] = max(surest[node], given_parent)
            own.append(node)
        places_of.append(own)
    return _sorted([*nodes], surest, owners, places_of)


def _sorted(
    nodes: Sequence[tuple[int, int]],
    surest: Sequence[float],
    owners: Sequence[int],
    places_of: Sequence[Sequence[int]],
) -> Merged:
    """Sorted by likelihood, highest first. A guess stays before its successors: they are at most as
    likely and came later, and the sort is stable."""
    likelihoods: list[float] = []
    for (parent, _), given_parent in zip(nodes, surest, strict=True):
        likelihoods.append(given_parent * (likelihoods[parent] if parent >= 0 else 1.0))
    order = sorted(range(len(nodes)), key=lambda node: -likelihoods[node])
    place_of = {node: place for place, node in enumerate(order)}
    draft = Draft(
        [nodes[node][1] for node in order],
        [place_of.get(nodes[node][0], -1) for node in order],
        [likelihoods[node] for node in order],
    )
    places = [[place_of[node] for node in own] for own in places_of]
    return Merged(draft, [owners[node] for node in order], places)
