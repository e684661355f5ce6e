"""Short texts and tables of people, orders and trips, with the same as JSON or as CSV."""

import json
from collections.abc import Callable
from random import Random

from lab.models.default.tables import DrawRow, Row, draw_split
from lab.models.default.texts import draw_city, draw_part

_Person = tuple[str, int, str]  # name, age, city
_HEADER = "Name,Age,City"
_SENTENCES = (
    "{} is {} years old and lives in {}.",
    "{}, {}, lives in {}.",
    "{} is {} and comes from {}.",
    "{} ({}) is from {}.",
)


def record_tables() -> dict[str, DrawRow]:
    return {name: _split(draw) for name, draw in _DRAWS.items()}


def _split(draw: Callable[[Random], Row]) -> DrawRow:
    return draw_split(draw, lambda row: (row["text"],))


def _people(rng: Random) -> list[_Person]:
    count = rng.choice((2, 2, 3))
    return [(draw_part("name", rng), rng.randint(18, 79), draw_city(rng)) for _ in range(count)]


def _sentences(people: list[_Person], rng: Random) -> str:
    sentence = rng.choice(_SENTENCES)
    return " ".join(sentence.format(*person) for person in people)


def _csv(people: list[_Person]) -> str:
    return "\n".join([_HEADER, *(f"{name},{age},{city}" for name, age, city in people)])


def _json(people: list[_Person]) -> str:
    return json.dumps([{"name": name, "age": age, "city": city} for name, age, city in people])


def _text_to_json(rng: Random) -> Row:
    people = _people(rng)
    return {"text": _sentences(people, rng), "json": _json(people)}


def _csv_to_json(rng: Random) -> Row:
    people = _people(rng)
    return {"text": "\n" + _csv(people), "json": _json(people)}


def _text_to_csv(rng: Random) -> Row:
    people = _people(rng)
    return {"text": _sentences(people, rng), "csv": _csv(people)}


def _order(rng: Random) -> Row:
    name, day = draw_part("name", rng), draw_part("day", rng)
    first, second = draw_part("things", rng), draw_part("things", rng)
    items = {first: rng.randint(2, 60)} | {second: rng.randint(2, 60)}
    bought = " and ".join(f"{count} {thing}" for thing, count in items.items())
    text = rng.choice(("{name} bought {bought} on {day}.", "On {day} {name} bought {bought}."))
    return {
        "text": text.format(name=name, bought=bought, day=day),
        "json": json.dumps({"name": name, "day": day, "items": items}),
    }


def _trip(rng: Random) -> Row:
    name, day = draw_part("name", rng), draw_part("day", rng)
    start, end = draw_city(rng), draw_city(rng)
    time = f"{rng.randint(5, 22)}:{rng.randint(0, 59):02}"
    text = rng.choice(
        (
            "{name} travels from {start} to {end} on {day} at {time}.",
            "On {day} at {time}, {name} goes from {start} to {end}.",
        )
    )
    return {
        "text": text.format(name=name, start=start, end=end, day=day, time=time),
        "json": json.dumps({"name": name, "from": start, "to": end, "day": day, "time": time}),
    }


_DRAWS: dict[str, Callable[[Random], Row]] = {
    "text_to_json": _text_to_json,
    "csv_to_json": _csv_to_json,
    "text_to_csv": _text_to_csv,
    "orders": _order,
    "trips": _trip,
}
