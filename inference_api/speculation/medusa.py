"""Drafts with Medusa heads, which are trained to predict a model's next tokens from its last hidden
state.

Cai et al. 2024, arXiv 2401.10774. Head k predicts the token k + 1 positions after the last accepted
one, without knowing the tokens between, so the guesses of all heads form a tree.
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from inference_api.core.drafts import Outcome
from inference_api.core.rows import Draft, UserRow
from inference_api.runner import DraftHeads, Hidden
from inference_api.speculation.calibration import Calibration, ProposedDraft

NO_NODE = -1  # means no node


class MedusaDrafts:
    """A `DraftSource` that gives each row a tree of the likeliest guesses, up to `max_tokens`."""

    name = "medusa"
    wants_hidden = True

    def __init__(self, heads: DraftHeads, max_tokens: int) -> None:
        self._heads = heads
        self._max_tokens = max_tokens
        self._tree = _Tree(heads.paths)
        self._hidden: dict[int, tuple[UserRow, Hidden]] = {}  # keyed by row index
        self._calibration = Calibration(num_kinds=self._tree.num_heads)

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        known_rows = [row for row in rows if self._hidden.get(row.index, (None,))[0] is row]
        if not known_rows:
            return {}
        guesses = self._heads.guess([self._hidden[row.index][1] for row in known_rows])
        columns = guesses.token_ids.tolist(), guesses.probabilities.tolist()
        return self._calibration.drafts(
            self._tree.likeliest(*each, self._calibration, self._max_tokens)
            for each in zip(known_rows, *columns, strict=True)
        )

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.hidden is not None:
                self._hidden[outcome.row.index] = outcome.row, outcome.hidden
            else:  # the state that is kept, if any, is from an earlier step
                self._hidden.pop(outcome.row.index, None)
        self._calibration.learn(outcomes)


class _Tree:
    """The tree of possible guesses. It has the first child and the next sibling of each node."""

    def __init__(self, paths: Sequence[tuple[int, ...]]) -> None:
        ordered = sorted(paths)  # siblings by rank
        node_of = {path: node for node, path in enumerate(ordered)}
        self.num_heads = max(map(len, paths))
        self._head = [len(path) - 1 for path in ordered]
        self._rank = [path[-1] for path in ordered]
        self._first_child = [NO_NODE] * len(ordered)
        self._next_sibling = [NO_NODE] * len(ordered)
        last: dict[tuple[int, ...], int] = {}  # the latest child of each path
        for path in ordered:
            before, node = path[:-1], node_of[path]
            if before in last:
                self._next_sibling[last[before]] = node
            elif before:
                self._first_child[node_of[before]] = node
            last[before] = node

    def likeliest(
        self,
        row: UserRow,
        token_ids: Sequence[Sequence[int]],
        probabilities: Sequence[Sequence[float]],
        calibration: Calibration,
        max_tokens: int,
    ) -> ProposedDraft:
        """Returns the likeliest nodes, best first. Tokens and probabilities are [heads, ranks].

        A node is considered only after its parent and its previous sibling, which are at least as
        likely, have been chosen.
        """
        chosen: list[tuple[int, int, float, int, float]] = []
        waiting: list[tuple[float, int, int, float, int, float]] = []

        def consider(node: int, parent: int, of_parent: float, most: float) -> None:
            probability = probabilities[self._head[node]][self._rank[node]]
            each, likelihood = calibration.calibrated(self._head[node], probability)
            likelihood = min(of_parent * likelihood, most)
            heappush(waiting, (-likelihood, node, parent, of_parent, each, probability))

        consider(0, NO_NODE, 1.0, 1.0)
        while waiting and len(chosen) < max_tokens:
            minus_likelihood, node, parent, of_parent, each, probability = heappop(waiting)
            place, likelihood = len(chosen), -minus_likelihood
            token_id = token_ids[self._head[node]][self._rank[node]]
            chosen.append((token_id, parent, likelihood, each, probability))
            if (sibling := self._next_sibling[node]) != NO_NODE:
                consider(sibling, parent, of_parent, likelihood)
            if (child := self._first_child[node]) != NO_NODE:
                consider(child, place, likelihood, likelihood)
        tokens, parents, likelihoods, bins, stated = map(list, zip(*chosen, strict=True))
        return ProposedDraft(row, Draft(tokens, parents, likelihoods), bins, stated)
