"""Merges the drafts of several sources for one row into one tree."""

from collections.abc import Sequence

from inference_api.core.rows import Draft


def merged(drafts: Sequence[Draft]) -> Draft:
    """Returns the union of the drafts' branches, the likeliest guesses first. A guess in several
    drafts gets the highest of its conditional likelihoods."""
    if len(drafts) == 1:
        return drafts[0]
    nodes: dict[tuple[int, int], int] = {}  # indices by parent and token, in order of insertion
    surest: list[float] = []  # conditional likelihoods
    for draft in drafts:
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
            surest[node] = max(surest[node], given_parent)
            own.append(node)
    return _sorted([*nodes], surest)


def best_of(drafts: Sequence[Draft]) -> Draft:
    """Returns the draft with the highest expected number of right tokens."""
    return max(drafts, key=lambda draft: sum(draft.likelihoods))


def _sorted(nodes: Sequence[tuple[int, int]], surest: Sequence[float]) -> Draft:
    """Returns the draft sorted by likelihood, highest first. A guess stays before its successors:
    they are at most as likely, come later, and the sort is stable."""
    likelihoods: list[float] = []
    for (parent, _), given_parent in zip(nodes, surest, strict=True):
        likelihoods.append(given_parent * (likelihoods[parent] if parent >= 0 else 1.0))
    order = sorted(range(len(nodes)), key=lambda node: -likelihoods[node])
    place_of = {node: place for place, node in enumerate(order)}
    return Draft(
        [nodes[node][1] for node in order],
        [place_of.get(nodes[node][0], -1) for node in order],
        [likelihoods[node] for node in order],
    )
