"""Calculations beyond the ranges of the default model, worked out in steps that each are easy."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from lab.models.default.numbers import problem
from lab.models.default.relations import Relation
from lab.models.default.tables import DrawRow, Row, draw_split

MAX_OPERAND = 999
MAX_FACTOR = 99

# unit, its plural, smaller unit, factor: those that the default model knows up to 12 of only
_UNITS = (
    ("hour", "hours", "minutes", 60),
    ("minute", "minutes", "seconds", 60),
    ("day", "days", "hours", 24),
    ("week", "weeks", "days", 7),
    ("year", "years", "months", 12),
    ("foot", "feet", "inches", 12),
)


def sums(known: dict[str, Relation]) -> list[Relation]:
    """The questions of the default model (by name, in `known`) about larger numbers."""
    addition = _split(_addition)
    subtraction = _split(_subtraction)
    total = "{worked}. There are {c} {things}."
    asked: dict[str, tuple[DrawRow, str]] = {
        "arithmetic.add": (addition, "{worked}."),
        "arithmetic.subtract": (subtraction, "{worked}."),
        "arithmetic.multiply": (_split(_product), "{worked}."),
        "arithmetic.divide": (_split(_quotient), "{worked}."),
        "arithmetic.problem_add": (problem(addition), total),
        "arithmetic.problem_subtract": (problem(subtraction), total),
        "units.convert": (
            draw_split(_conversion, lambda row: (row["n"], row["unit"])),
            "One {unit} is {factor} {small}. {worked}, so {n} {big} are {result}.",
        ),
    }
    return [
        replace(
            known[name],
            name=f"sums.{name.partition('.')[2]}",
            category="sums",
            draw_row=draw_row,
            answer=answer,
        )
        for name, (draw_row, answer) in asked.items()
    ]


def _split(draw: Callable[[Random], Row]) -> DrawRow:
    return draw_split(draw, lambda row: (row["a"], row["b"]))


def _addition(rng: Random) -> Row:
    a, b = rng.randint(100, MAX_OPERAND), rng.randint(10, MAX_OPERAND)
    return _calculation("plus", a, b, a + b, _place_by_place("plus", a, b))


def _subtraction(rng: Random) -> Row:
    a, b = sorted((rng.randint(100, MAX_OPERAND), rng.randint(10, MAX_OPERAND)), reverse=True)
    return _calculation("minus", a, b, a - b, _place_by_place("minus", a, b))


def _product(rng: Random) -> Row:
    a, b = rng.randint(13, MAX_FACTOR), rng.randint(3, 9)
    return _calculation("times", a, b, a * b, _by_tens_and_ones(a, b))


def _quotient(rng: Random) -> Row:
    quotient, b = rng.randint(13, MAX_FACTOR), rng.randint(3, 9)
    a, tens = quotient * b, quotient - quotient % 10
    rest = a - tens * b
    steps = [f"{b} times {tens} is {a - rest}"]
    if rest:
        steps.append(f"{a} minus {a - rest} is {rest}")
        steps.append(f"{rest} divided by {b} is {rest // b}")
    return _calculation("divided by", a, b, quotient, steps)


def _conversion(rng: Random) -> Row:
    unit, plural, small, factor = rng.choice(_UNITS)
    count = rng.randint(13, MAX_FACTOR)
    return {
        "n": str(count),
        "big": plural,
        "unit": unit,
        "small": small,
        "factor": str(factor),
        "worked": " and ".join(_by_tens_and_ones(count, factor)),
        "result": f"{count * factor} {small}",
    }


def _calculation(sign: str, a: int, b: int, c: int, steps: list[str]) -> Row:
    result = f"{a} {sign} {b} is {c}"
    worked = result if len(steps) < 2 else " and ".join(steps) + f", so {result}"
    return {"a": str(a), "b": str(b), "c": str(c), "result": result, "worked": worked}


def _place_by_place(sign: str, a: int, b: int) -> list[str]:
    """First the hundreds of `b`, then its tens, then its ones, as far as it has them."""
    steps, last = [], a
    for place in (100, 10, 1):
        part = b // place % 10 * place
        if part:
            following = last + part if sign == "plus" else last - part
            steps.append(f"{last} {sign} {part} is {following}")
            last = following
    return steps


def _by_tens_and_ones(a: int, b: int) -> list[str]:
    ones = a % 10
    tens = a - ones
    steps = [f"{tens} times {b} is {tens * b}"]
    if ones:
        steps.append(f"{ones} times {b} is {ones * b}")
        steps.append(f"{tens * b} plus {ones * b} is {a * b}")
    return steps
