"""Exchanges that need an earlier turn: follow-up questions and the user's own name."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from .relations import Exchange, Relation
from .texts import draw_part
from .wordings import Frames, capitalise, expand

_SUBJECT_BY_RELATION = {
    "countries.capital": "country",
    "countries.continent": "country",
    "countries.language": "country",
    "countries.currency": "country",
    "countries.known_for": "country",
    "cities.where": "city",
    "cities.see": "city",
    "cities.eat": "city",
    "cities.water": "city",
    "words.opposite": "word",
    "words.plural": "word",
    "words.past": "word",
}
_TELL_NAME = expand("(My name is {name}|I am {name}|Hello, I am {name}|Hi! My name is {name}).")
_TELL_NAME_HELD_OUT = ("People call me {name}.", "Good day, my name is {name}.")
_ASK_NAME = (
    "What is my name?",
    "Do you know my name?",
    "Do you remember my name?",
    "Who am I?",
    "Tell me my name.",
    "What am I called?",
    "What was my name?",
    "Say my name.",
    "I told you my name. What is it?",
    "Which name do I have?",
    "Can you say what my name is?",
)
_ASK_NAME_HELD_OUT = ("Can you remember what my name is?", "Which name did I tell you?")


def follow_up(
    relations: Mapping[str, Relation], frames: Frames, rng: Random, *, held_out: bool
) -> list[Exchange]:
    """A question, and then the same question for another subject in a few words ("And Peru?")."""
    name = rng.choice(list(_SUBJECT_BY_RELATION))
    relation = relations[name]
    first = relation.exchange(rng, ("{q}",), held_out=held_out)
    row = relation.draw_row(rng, held_out)
    wordings = (frames.held_out if held_out else frames.training)["follow"]
    question = rng.choice(wordings).replace("{x}", row[_SUBJECT_BY_RELATION[name]])
    second = relation.answer_about(row, capitalise(question))
    return [first, replace(second, category="conversation")]


def name_exchanges(rng: Random, *, held_out: bool) -> tuple[Exchange, Exchange]:
    """The user tells a name, and later asks for it."""
    name = draw_part("name", rng)
    tell = rng.choice(_TELL_NAME_HELD_OUT if held_out else _TELL_NAME)
    ask = rng.choice(_ASK_NAME_HELD_OUT if held_out else _ASK_NAME)
    greeting = f"Nice to meet you, {name}! How can I help you?"
    return (
        Exchange("talk.name", "talk", tell.replace("{name}", name), greeting, (name,)),
        Exchange("conversation.name", "conversation", ask, f"Your name is {name}.", (name,)),
    )
