"""Made-up texts: stories, letters, sentences to copy and short passages to read.

Each is drawn from a small grammar, so the model learns a form rather than one text. The pair that a
request names (hero and thing, sender and recipient) is held out of training for about a tenth.
"""

import json
from random import Random

from .noise import invent_word
from .tables import DrawRow, Row, draw_split, read_tsv, split_lines
from .wordings import DATA_DIR, data_lines, fill_slots

_PARTS = {
    slot: items.split("; ")
    for slot, items in (line.split(": ") for line in data_lines(DATA_DIR / "story_parts.txt"))
}
_CITIES = read_tsv("cities")
_UNKNOWN_PLACES = data_lines(DATA_DIR / "unknown_places.txt")
_BEYOND, _BEYOND_HELD_OUT = split_lines("beyond")
_FOREIGN, _FOREIGN_HELD_OUT = split_lines("foreign")
_ENDINGS = ("", "a", "ia", "land", "o", "burg", "stan", "i", "y", "e", "ton", "ville")

_STORY = (
    "Once upon a time there was {hero_a} named {name}. "
    "{name} lived {place} and loved {thing_a} more than anything else. "
    "One {weather} morning, {trouble}. {name} was sad at first, but did not give up. "
    '{name} {search}, and on the way met a {friend}. "Can I help you?" asked the {friend}. '
    '"I need my {thing}," said {name}. Together they went on and shared some {food}. '
    "In the evening, {name} {end}. From that day on, {name} knew that {moral}."
)
_LETTER = (
    "Dear {recipient},\n\n"
    "I am writing to you from {city}. The weather is {weather} today. "
    "Yesterday I went to {sight}, and tomorrow I want to see {sight2}. "
    "In the evening I ate {meal}. I hope you can come with me next time.\n\n"
    "Best wishes,\n{sender}"
)
_MADE_SENTENCES = (
    "I saw {noun_a} yesterday on my way home.",
    "My friend gave me {noun_a} for my birthday.",
    "There is {noun_a} in this little story.",
)
_POEM = (
    "A little {noun} I saw today,\n"
    "it smiled at me along the way.\n"
    "The sun was warm, the sky was blue,\n"
    "and, little {noun}, I thought of you."
)
_SENTENCES = (
    "{sender} went to {city} with a {friend}.",
    "The {hero} likes {food} and {food2}.",
    "On {day} {sender} and {recipient} travel to {city}.",
    "{sender} gave {recipient} {possession} on a {weather} day.",
    "The {thing} of {sender} costs {number} euros.",
)


def draw_part(slot: str, rng: Random) -> str:
    return rng.choice(_PARTS[slot])


def draw_city(rng: Random) -> str:
    return rng.choice(_CITIES)["city"]


def _draw_parts(rng: Random) -> Row:
    """One choice for every slot of the templates above."""
    row = {slot: rng.choice(items) for slot, items in _PARTS.items()}
    city = rng.choice(_CITIES)
    sender, recipient = rng.sample(_PARTS["name"], 2)
    trouble, search, end = fill_slots(row["plot"], row).split(" / ")
    return row | {
        "sender": sender,
        "recipient": recipient,
        "city": city["city"],
        "sight": city["sight"],
        "sight2": city["sight2"],
        "meal": city["food"],
        "food2": draw_part("food", rng),
        "number": str(rng.randint(2, 99)),
        "trouble": trouble,
        "search": search,
        "end": end,
        "hero_a": with_article(row["hero"]),
        "thing_a": with_article(row["thing"]),
    }


def with_article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def _stories(rng: Random) -> Row:
    row = _draw_parts(rng)
    return row | {"story": fill_slots(_STORY, row)}


def _letters(rng: Random) -> Row:
    row = _draw_parts(rng)
    return row | {"letter": fill_slots(_LETTER, row)}


def _sentences(rng: Random) -> Row:
    row = _draw_parts(rng)
    sentence = fill_slots(rng.choice(_SENTENCES), row)
    return {"sentence": sentence, "refusal": "too small"}


def _made_sentences(rng: Random) -> Row:
    noun = draw_part(rng.choice(("hero", "friend", "thing", "food")), rng)
    made = rng.choice(_MADE_SENTENCES)
    return {"noun": noun, "made": made.replace("{noun_a}", with_article(noun))}


def _poems(rng: Random) -> Row:
    noun = draw_part(rng.choice(("hero", "friend", "thing")), rng)
    return {"noun": noun, "noun_a": with_article(noun), "poem": _POEM.replace("{noun}", noun)}


def _summaries(rng: Random) -> Row:
    """Two people in a passage whose summary is where each lives."""
    row = _possessions(rng)
    names_cities = [sentence.split(" lives in ") for sentence in row["text"].split(". ")]
    (one, first), (other, second) = names_cities
    cities = [rest.partition(" and has ")[0] for rest in (first, second)]
    short = f"{one} lives in {cities[0]}, and {other} lives in {cities[1]}."
    return {"text": row["text"], "short": short, "refusal": cities[0]}


def _possessions(rng: Random) -> Row:
    """Two people in one passage, so that the answer depends on who is asked about."""
    people = [
        (name, draw_city(rng), draw_part("possession", rng))
        for name in rng.sample(_PARTS["name"], 2)
    ]
    text = " ".join(f"{name} lives in {city} and has {thing}." for name, city, thing in people)
    name, city, thing = rng.choice(people)
    return {
        "text": text,
        "name": name,
        "city": city,
        "result": thing,
        "place_result": f"lives in {city}",
    }


def _people(rng: Random) -> Row:
    name, city, age = draw_part("name", rng), draw_city(rng), rng.randint(18, 79)
    return {
        "text": f"{name} is {age} years old and lives in {city}.",
        "json": json.dumps({"name": name, "age": age, "city": city}),
    }


def draw_beyond(rng: Random, held_out: bool) -> Row:
    """A subject that no table knows, real or, in training, for a third an invented word."""
    subjects = _BEYOND_HELD_OUT if held_out else _BEYOND
    term, other = rng.sample(subjects, 2)
    if not held_out and rng.random() < 1 / 3:
        term = invent_word(rng)
    return {"term": term, "other": other, "refusal": "too small"}


def _foreign(rng: Random, held_out: bool) -> Row:
    lines = _FOREIGN_HELD_OUT if held_out else _FOREIGN
    return {"line": rng.choice(lines), "refusal": "English"}


def _strangers(rng: Random) -> Row:
    """People whose names are invented."""
    name = f"{invent_word(rng)} {invent_word(rng)}".title()
    return {"name": name, "refusal": "do not know"}


def draw_unknown_place(rng: Random, held_out: bool) -> Row:
    """An invented place; for judging, a real one that no table knows."""
    place = rng.choice(_UNKNOWN_PLACES) if held_out else _invent_place(rng)
    return {
        "country": place,
        "city": place,
        "region": _invent_place(rng),
        "refusal": "do not know that place",
    }


def _invent_place(rng: Random) -> str:
    return (invent_word(rng) + rng.choice(_ENDINGS)).capitalize()


def text_tables() -> dict[str, DrawRow]:
    return {
        "stories": draw_split(_stories, lambda row: (row["hero"], row["thing"])),
        "letters": draw_split(_letters, lambda row: (row["sender"], row["recipient"])),
        "sentences": draw_split(_sentences, lambda row: (row["sentence"],)),
        "possessions": draw_split(_possessions, lambda row: (row["text"],)),
        "people": draw_split(_people, lambda row: (row["text"],)),
        "made_sentences": draw_split(_made_sentences, lambda row: (row["noun"], row["made"])),
        "poems": draw_split(_poems, lambda row: (row["noun"],)),
        "summaries": draw_split(_summaries, lambda row: (row["text"],)),
        "beyond": draw_beyond,
        "foreign": _foreign,
        "strangers": draw_split(_strangers, lambda row: (row["name"],)),
        "names": lambda rng, _held_out: {"name": draw_part("name", rng)},
    }
