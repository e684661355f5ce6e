"""Draft sources as tests make them: one that knows the answer, one that knows better, dice."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from inference_api.core.drafts import DraftSource, Outcome
from inference_api.core.rows import Draft, Tokens, UserRow
from inference_api.request import FinishReason, GenerationRequest
from inference_api.speculation.medusa import MedusaDrafts
from inference_api.speculation.ngram import NgramDrafts
from tests.inference_api.speculation.decoding import Answer, Model

CHAIN_TOKENS = 3
TREE_TOKENS = 6
ANY_TOKENS = 300  # no model here has fewer: a guess has to be a token


class Known:
    """What requests are answered without drafts, for sources to look up by their rows."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self._answers: dict[tuple[Tokens, int], Answer] = {}
        self._said: dict[tuple[Tokens, Tokens], list[int]] = defaultdict(list)
        for answer in answers:
            self._answers[_key(answer.request)] = answer
            for at, token in enumerate(answer.tokens):
                self._said[answer.request.prompt_tokens, answer.tokens[:at]].append(token)

    def following(self, row: UserRow) -> Tokens:
        """The tokens that come next, the stop token too, and one that nobody gets to see."""
        answer = self._answers[_key(row.request)]
        stop = tuple(row.request.stop_token_ids)[:1] * 2
        is_whole = answer.finish_reason is FinishReason.STOP
        return (answer.tokens + (stop if is_whole else ()))[len(row.generated) :]

    def likely(self, row: UserRow) -> list[int]:
        """The likeliest tokens in the next one's place, where log probabilities were asked for."""
        events = self._answers[_key(row.request)].events
        scored = [each for event in events for each in event.logprobs]
        at = len(row.generated)
        return [token for token, _ in scored[at].top] if at < len(scored) else []

    def said(self, row: UserRow, branch: Tokens) -> Sequence[int]:
        """What answers to the prompt go on with after the row's tokens and these."""
        return self._said.get((row.request.prompt_tokens, (*row.generated, *branch)), ())


class _Guesser:
    """Learns nothing, and takes all its guesses to be as likely."""

    name = "test"
    wants_hidden = False

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """It knows."""


def _draft(tokens: Sequence[int], parents: Sequence[int] | None = None) -> Draft:
    return Draft(tokens, parents, [0.5] * len(tokens))


class Oracle(_Guesser):
    """The tokens that will be drawn, as a chain, and one behind the end of the answer."""

    def __init__(self, known: Known) -> None:
        self._known = known

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        following = {row.index: self._known.following(row)[:CHAIN_TOKENS] for row in rows}
        return {index: _draft(tokens) for index, tokens in following.items() if tokens}


class Adversary(_Guesser):
    """The likeliest tokens but the one that will be drawn, and what would be right after that one
    after each of them."""

    def __init__(self, known: Known) -> None:
        self._known = known

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        drafts = {}
        for row in rows:
            right, *after = self._known.following(row)[:2] or (-1,)
            wrong = [token for token in self._known.likely(row) if token != right][:CHAIN_TOKENS]
            if wrong:
                parents = (*[-1] * len(wrong), *(range(len(wrong)) if after else ()))
                drafts[row.index] = _draft((*wrong, *after * len(wrong)), parents)
        return drafts


class RandomTrees(_Guesser):
    """Trees of any shape, mostly of what answers to the same prompt go on with."""

    def __init__(self, known: Known) -> None:
        self._known = known

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        return {row.index: self._tree(row) for row in rows}

    def _tree(self, row: UserRow) -> Draft:
        dice = random.Random(f"{row.request.params.sampling.seed} {len(row.generated)}")
        tokens: list[int] = []
        parents: list[int] = []
        branches: dict[int, Tokens] = {-1: ()}
        for _ in range(TREE_TOKENS):
            parent = dice.choice(list(branches))
            said = self._known.said(row, branches[parent])
            token = dice.choice(said if said and dice.random() < 0.8 else range(ANY_TOKENS))
            if (parent, token) not in zip(parents, tokens, strict=True):  # siblings differ
                branches[len(tokens)] = (*branches[parent], token)
                tokens.append(token)
                parents.append(parent)
        return _draft(tokens, parents)


# Whose answers have to be those of single steps. A source joins by a line.
SOURCES: Mapping[str, Callable[[Model, Known], DraftSource]] = {
    "ngram": lambda model, known: NgramDrafts(max_tokens=8),
    "medusa": lambda model, known: MedusaDrafts(model.heads, max_tokens=8),
    "oracle": lambda model, known: Oracle(known),
    "adversary": lambda model, known: Adversary(known),
    "random trees": lambda model, known: RandomTrees(known),
}


def _key(request: GenerationRequest) -> tuple[Tokens, int]:
    return request.prompt_tokens, request.params.sampling.seed
