"""Tables of numbers: sums, comparisons, units and counting, within the ranges the card states.

About a tenth of the operand pairs is held out of training. Products and quotients are the
exception: within 12 x 12 they are facts to be known by heart, so only their wording is new when
judged.
"""

from random import Random

from .tables import DrawRow, Row, draw_split, from_rows
from .texts import draw_part

MAX_OPERAND = 99
_OPERAND_BOUNDS = (9, 20, MAX_OPERAND, MAX_OPERAND)  # small sums are what people try first
MAX_FACTOR = 12
MAX_COMPARED = 999


def _draw_operands(rng: Random) -> tuple[int, int]:
    bound = rng.choice(_OPERAND_BOUNDS)
    return rng.randint(0, bound), rng.randint(0, bound)


def _addition(rng: Random) -> Row:
    a, b = _draw_operands(rng)
    return _calculation("plus", a, b, a + b, _in_two_steps("plus", a, b))


def _subtraction(rng: Random) -> Row:
    b, a = sorted(_draw_operands(rng))
    return _calculation("minus", a, b, a - b, _in_two_steps("minus", a, b))


def _calculation(sign: str, a: int, b: int, c: int, steps: str = "") -> Row:
    result = f"{a} {sign} {b} is {c}"
    return {"a": str(a), "b": str(b), "c": str(c), "result": result, "worked": steps + result}


def _in_two_steps(sign: str, a: int, b: int) -> str:
    """First the tens of `b`, then its ones: each step changes few digits, so it generalises."""
    tens, ones = b - b % 10, b % 10
    if not tens or not ones:
        return ""
    factor = 1 if sign == "plus" else -1
    middle = a + factor * tens
    last = middle + factor * ones
    return f"{a} {sign} {tens} is {middle} and {middle} {sign} {ones} is {last}, so "


def _products() -> list[Row]:
    factors = range(1, MAX_FACTOR + 1)
    return [_calculation("times", a, b, a * b) for a in factors for b in factors]


def _quotients() -> list[Row]:
    products = ((int(row["c"]), int(row["a"]), int(row["b"])) for row in _products())
    return [_calculation("divided by", product, b, a) for product, a, b in products]


def _operands(row: Row) -> tuple[str, ...]:
    return row["a"], row["b"]


def _two_step_operands(row: Row) -> tuple[str, ...] | None:
    """Pairs worked in one step also occur as steps of other sums, so they cannot be kept apart."""
    return _operands(row) if ", so " in row["worked"] else None


def problem(calculation: DrawRow) -> DrawRow:
    def draw_row(rng: Random, held_out: bool) -> Row:
        row = calculation(rng, held_out)
        return row | {"name": draw_part("name", rng), "things": draw_part("things", rng)}

    return draw_row


def _parity(rng: Random) -> Row:
    a = rng.randint(0, MAX_OPERAND)
    parity = "odd" if a % 2 else "even"
    return {"a": str(a), "parity": parity, "result": parity}


def _comparing(rng: Random) -> Row:
    bound = rng.choice((20, 99, MAX_COMPARED))
    a, b = rng.sample(range(bound + 1), 2)
    larger, smaller = str(max(a, b)), str(min(a, b))
    return {
        "a": str(a),
        "b": str(b),
        "larger": larger,
        "smaller": smaller,
        "larger_result": f"{larger} is larger",
        "smaller_result": f"{smaller} is smaller",
    }


# unit, its plural, smaller unit, factor, largest count asked for
_UNITS = (
    ("kilometre", "kilometres", "metres", 1000, 99),
    ("metre", "metres", "centimetres", 100, 99),
    ("centimetre", "centimetres", "millimetres", 10, 99),
    ("kilogram", "kilograms", "grams", 1000, 99),
    ("tonne", "tonnes", "kilograms", 1000, 99),
    ("litre", "litres", "millilitres", 1000, 99),
    ("kilobyte", "kilobytes", "bytes", 1000, 99),
    ("euro", "euros", "cents", 100, 99),
    ("hour", "hours", "minutes", 60, 12),
    ("minute", "minutes", "seconds", 60, 12),
    ("day", "days", "hours", 24, 10),
    ("week", "weeks", "days", 7, 12),
    ("year", "years", "months", 12, 12),
    ("foot", "feet", "inches", 12, 12),
    ("century", "centuries", "years", 100, 20),
)


def _conversion(rng: Random) -> Row:
    unit, plural, small, factor, largest = rng.choice(_UNITS)
    count = rng.randint(1, min(largest, rng.choice((12, 99))))
    return {
        "n": str(count),
        "big": unit if count == 1 else plural,
        "unit": unit,
        "small": small,
        "factor": str(factor),
        "verb": "is" if count == 1 else "are",
        "result": f"{count * factor} {small}",
    }


def _conversion_identity(row: Row) -> tuple[str, ...] | None:
    """Only powers of ten generalise to unseen counts; 60, 24, 12 and 7 are known by heart."""
    return (row["n"], row["unit"]) if row["factor"] in ("10", "100", "1000") else None


def _unit_factors() -> list[Row]:
    return [{"unit": u[0], "small": u[2], "result": f"{u[3]} {u[2]}"} for u in _UNITS]


def _enumerate(numbers: range) -> str:
    return ", ".join(map(str, numbers)) + "."


def _counting_up(rng: Random) -> Row:
    a = rng.randint(0, 60)
    b = a + rng.randint(4, 20)
    return {"a": str(a), "b": str(b), "result": _enumerate(range(a, b + 1))}


def _counting_down(rng: Random) -> Row:
    b = rng.randint(0, 40)
    a = b + rng.randint(4, 12)
    return {"a": str(a), "b": str(b), "result": _enumerate(range(a, b - 1, -1))}


def _counting_by() -> list[Row]:
    return [
        {"step": str(step), "b": str(end), "result": _enumerate(range(step, end + 1, step))}
        for step in (2, 3, 5, 10)
        for end in range(4 * step, 13 * step, step)
    ]


def _multiples(factor: int, most: int) -> list[Row]:
    rows = ((a, factor * a) for a in range(most + 1))
    return [{"a": str(a), "c": str(c), "result": f"is {c}"} for a, c in rows]


def _halves() -> list[Row]:
    return [row | {"a": row["c"], "c": row["a"], "result": f"is {row['a']}"}
            for row in _multiples(2, 50)]  # fmt: skip


def _squares() -> list[Row]:
    squares = ((a, a * a) for a in range(1, MAX_FACTOR + 1))
    return [
        {"a": str(a), "c": str(c), "result": f"is {c}", "root_result": f"is {a}"}
        for a, c in squares
    ]


def _percents() -> list[Row]:
    """Whole parts of whole tens, and of hundreds."""
    counts = [*range(10, 110, 10), *range(200, 1100, 100)]
    return [
        {"p": str(p), "a": str(a), "c": str(p * a // 100), "result": f"is {p * a // 100}"}
        for p in (10, 20, 25, 50, 75, 100)
        for a in counts
        if p * a % 100 == 0
    ]


def _three_terms(rng: Random) -> Row:
    a, b, d = (rng.randint(1, 30) for _ in range(3))
    first, result = f"{a} plus {b} is {a + b}", f"{a + b} plus {d} is {a + b + d}"
    row = {"a": str(a), "b": str(b), "d": str(d), "result": result}
    return row | {"worked": f"First {first}, then {result}"}


def _next_number(rng: Random) -> Row:
    a = rng.randint(0, 150)
    return {"a": str(a), "c": str(a + 1), "result": f"is {a + 1}"}


def number_tables() -> dict[str, DrawRow]:
    addition = draw_split(_addition, _two_step_operands)
    subtraction = draw_split(_subtraction, _two_step_operands)
    return {
        "addition": addition,
        "subtraction": subtraction,
        "multiplication": from_rows(_products()),
        "division": from_rows(_quotients()),
        "problem_add": problem(addition),
        "problem_subtract": problem(subtraction),
        "halves": from_rows(_halves()),
        "doubles": from_rows(_multiples(2, 50)),
        "squares": from_rows(_squares()),
        "percents": from_rows(_percents()),
        "three_terms": draw_split(_three_terms, lambda row: (row["a"], row["b"], row["d"])),
        "parity": draw_split(_parity, lambda row: (row["a"],)),
        "comparing": draw_split(_comparing, _operands),
        "conversion": draw_split(_conversion, _conversion_identity, judges_known=True),
        "unit_factors": from_rows(_unit_factors()),
        "counting_up": draw_split(_counting_up, _operands),
        "counting_down": draw_split(_counting_down, _operands),
        "counting_by": from_rows(_counting_by()),
        "next_number": draw_split(_next_number, lambda row: (row["a"],)),
    }
