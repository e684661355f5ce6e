"""Medusa: heads trained for the model guess its next tokens from the state that drew the last one.

Cai et al. 2024, arXiv 2401.10774. Head k guesses the token k + 1 places after the one that is
certain, without knowing those between: the guesses of all heads together are a tree.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_api.engine.runner import DraftHeads, Hidden
from inference_api.scheduling.rows import Draft, UserRow
from inference_api.scheduling.speculation.calibration import (
    Calibration,
    Integers,
    Numbers,
    Proposed,
)
from inference_api.scheduling.speculation.drafts import Outcome


class MedusaDrafts:
    """A `DraftSource`: of each row a tree of up to `max_tokens` guesses, the likeliest ones."""

    name = "medusa"
    wants_hidden = True

    def __init__(self, heads: DraftHeads, max_tokens: int) -> None:
        self._heads = heads
        self._max_tokens = max_tokens
        self._tree = _Tree(heads.paths)
        self._hidden: dict[int, tuple[UserRow, Hidden]] = {}  # by the index of the row
        self._proposed: dict[int, Proposed] = {}
        self._head = np.arange(self._tree.num_heads)[:, None]
        self._calibration = Calibration(self._tree.num_heads)

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        known = [row for row in rows if self._has_state(row)]
        self._proposed = {}
        if not known:
            return {}
        guesses = self._heads.guess([self._hidden[row.index][1] for row in known])
        probabilities = guesses.probabilities
        bins = self._calibration.bins(self._head, probabilities)
        likelihoods = self._calibration.likelihoods(bins, probabilities)
        drafts, nodes = self._tree.drafts(guesses.token_ids, likelihoods, self._max_tokens)
        own_bins = _taken(bins, nodes).tolist()
        own_probabilities = _taken(probabilities, nodes).tolist()
        for row, *proposed in zip(known, drafts, own_bins, own_probabilities, strict=True):
            self._proposed[row.index] = Proposed(*proposed)
        return {row.index: draft for row, draft in zip(known, drafts, strict=True)}

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.hidden is not None:
                self._hidden[outcome.row.index] = outcome.row, outcome.hidden
            if outcome.tried:
                self._calibration.learn(self._proposed[outcome.row.index], outcome)

    def _has_state(self, row: UserRow) -> bool:
        held = self._hidden.get(row.index)
        return held is not None and held[0] is row


class _Tree:
    """All paths that guesses are taken from, as arrays over their nodes."""

    def __init__(self, paths: Sequence[tuple[int, ...]]) -> None:
        node_of = {path: node for node, path in enumerate(paths)}
        self.num_heads, self._num_ranks = max(map(len, paths)), 1 + max(map(max, paths))
        self._guess = np.array([self._num_ranks * (len(path) - 1) + path[-1] for path in paths])
        self._parent = np.array([node_of.get(path[:-1], -1) for path in paths])
        # Of each node its ancestors and itself, root first, padded by an index whose factor is 1.
        self._ancestors = np.full((len(paths), self.num_heads), len(paths))
        for node, path in enumerate(paths):
            for depth in range(len(path)):
                self._ancestors[node, depth] = node_of[path[: depth + 1]]

    def drafts(
        self, token_ids: Integers, likelihoods: Numbers, max_tokens: int
    ) -> tuple[list[Draft], Integers]:
        """The likeliest nodes of each row, by the tokens [rows, heads, ranks] and how likely each
        is after a right one.

        Returns drafts, and [rows, guesses] which of a row's heads x ranks each guess is.
        """
        num_rows = len(token_ids)
        own = likelihoods.reshape(num_rows, -1)[:, self._guess]
        own = np.concatenate([own, np.ones((num_rows, 1), own.dtype)], axis=1)
        of_path = own[:, self._ancestors].prod(axis=2)
        # Parents come before their children: they are no less likely, and the sort is stable.
        nodes = np.argsort(-of_path, axis=1, kind="stable")[:, :max_tokens]
        place = np.full((num_rows, len(self._parent) + 1), -1)
        np.put_along_axis(place, nodes, np.arange(nodes.shape[1])[None], axis=1)
        parents = np.take_along_axis(place, self._parent[nodes], axis=1)
        guesses = self._guess[nodes]
        fields = (_taken(token_ids, guesses), parents, np.take_along_axis(of_path, nodes, axis=1))
        return [
            Draft(*row) for row in zip(*(each.tolist() for each in fields), strict=True)
        ], guesses


def _taken(values: NDArray[Any], guesses: Integers) -> NDArray[Any]:
    """Of values [rows, heads, ranks] those of some guesses [rows, guesses]."""
    return np.take_along_axis(values.reshape(len(values), -1), guesses, axis=1)
