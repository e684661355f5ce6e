"""The corpus: documents in the formats that the served model will meet, from one seed.

A document is a list of pieces, each a text and whether the model is trained to write it. Chat
documents use the turn format of the chat template, bare documents put the answer after the plain
question, prose has no question at all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from .conversations import follow_up, name_exchanges
from .relations import CATEGORY_WEIGHTS, Exchange, Relation, load_relations
from .wordings import load_frames

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
USER, ASSISTANT, SYSTEM = "<|user|>", "<|assistant|>", "<|system|>"
SPECIAL_TOKENS = (BOS, EOS, PAD, USER, ASSISTANT, SYSTEM)

_KINDS = {"bare": 36, "chat": 38, "conversation": 8, "follow_up": 11, "prose": 7}
_TOPIC_ODDS = 4  # exchanges of the topic for each of another kind
_PROSE_CATEGORIES = ("countries", "cities", "arithmetic", "stories", "technical", "words")


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    is_target: bool


Document = list[Piece]


def render(document: Document) -> str:
    return "".join(piece.text for piece in document)


def chat_turn(exchange: Exchange) -> Document:
    return [
        Piece(f"{USER}\n{exchange.question}{EOS}\n{ASSISTANT}\n", False),
        Piece(exchange.answer + EOS, True),
        Piece("\n", False),
    ]


class Corpus:
    """Draws exchanges and documents; one seed always gives the same ones in the same order.

    With `held_out` every wording, and every operand pair that is kept apart, comes from the part
    that training never sees. `topic` holds relations of a further category, of which most drawn
    exchanges then are.
    """

    def __init__(
        self, seed: int, *, held_out: bool = False, topic: Sequence[Relation] = ()
    ) -> None:
        self._rng = Random(seed)
        self._held_out = held_out
        self._frames = load_frames()
        split = self._frames.held_out if held_out else self._frames.training
        self._wraps = split["wrap"]
        self._relations = {relation.name: relation for relation in (*load_relations(), *topic)}
        topic_weight = _TOPIC_ODDS * sum(CATEGORY_WEIGHTS.values())
        self._weights = CATEGORY_WEIGHTS | {relation.category: topic_weight for relation in topic}
        self._by_category: dict[str, list[Relation]] = {}
        for relation in self._relations.values():
            self._by_category.setdefault(relation.category, []).append(relation)

    def exchange(self, category: str | None = None) -> Exchange:
        """One question with its answer, of the given category or of a drawn one."""
        if category is None:
            category = self._draw(self._weights)
        relation = self._rng.choice(self._by_category[category])
        return relation.exchange(self._rng, self._wraps, held_out=self._held_out)

    def dependent_exchanges(self) -> list[Exchange]:
        """Turns of which the last needs an earlier one to be answered."""
        if self._rng.random() < 0.7:
            return follow_up(self._relations, self._frames, self._rng, held_out=self._held_out)
        told, asked = name_exchanges(self._rng, held_out=self._held_out)
        between = [self.exchange() for _ in range(self._rng.randint(0, 2))]
        return [told, *between, asked]

    def documents(self, count: int) -> Iterator[Document]:
        for _ in range(count):
            kind = self._draw(_KINDS)
            if kind == "bare":
                yield self._bare()
            elif kind == "chat":
                yield self._chat([self.exchange()])
            elif kind == "conversation":
                yield self._chat([self.exchange() for _ in range(self._rng.randint(2, 4))])
            elif kind == "follow_up":
                yield self._chat(self.dependent_exchanges())
            else:
                yield self._prose()

    def long_documents(self, count: int) -> Iterator[Document]:
        """Conversations of many turns that open with a name and end with the question for it."""
        for _ in range(count):
            yield self._chat(self.long_exchanges())

    def long_exchanges(self) -> list[Exchange]:
        told, asked = name_exchanges(self._rng, held_out=self._held_out)
        between = [self.exchange() for _ in range(self._rng.randint(8, 18))]
        return [told, *between, asked]

    def _draw(self, weights: dict[str, int]) -> str:
        return self._rng.choices(list(weights), list(weights.values()))[0]

    def _bare(self) -> Document:
        exchange = self.exchange()
        gap = "\n" if self._rng.random() < 0.7 else " "
        return [Piece(exchange.question, False), Piece(gap + exchange.answer + EOS, True)]

    def _chat(self, exchanges: list[Exchange]) -> Document:
        document = [piece for exchange in exchanges for piece in chat_turn(exchange)]
        if self._rng.random() < 0.15:
            message = self._rng.choice(self._frames.training["system"])
            document.insert(0, Piece(f"{SYSTEM}\n{message}{EOS}\n", False))
        return document

    def _prose(self) -> Document:
        """Answers in a row: about one country or city, or a page of sums, words or a story."""
        category = self._rng.choice(_PROSE_CATEGORIES)
        relations = self._by_category[category]
        count = min(len(relations), 10)
        if category in ("countries", "cities"):
            row = relations[0].draw_row(self._rng, self._held_out)
            chosen = self._rng.sample(relations, self._rng.randint(2, 5))
            answers = [relation.answer_about(row, "").answer for relation in chosen]
        else:
            chosen = [self._rng.choice(relations) for _ in range(count)]
            rows = [relation.draw_row(self._rng, self._held_out) for relation in chosen]
            answers = [
                relation.answer_about(row, "").answer
                for relation, row in zip(chosen, rows, strict=True)
            ]
        return [Piece(self._rng.choice((" ", "\n")).join(answers) + EOS, True)]
