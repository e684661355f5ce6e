"""Questions to a database of a few tables, with the SQL that answers them."""

from random import Random

from lab.models.default.tables import DrawRow, Row, draw_split, from_rows
from lab.models.default.texts import draw_city, draw_part

# table: columns of text, columns of numbers
SCHEMA = {
    "customers": (("name", "city"), ("age",)),
    "orders": (("name", "day", "city"), ("price", "amount")),
    "books": (("title", "author"), ("pages", "price")),
    "employees": (("name", "city", "team"), ("salary", "age")),
    "trips": (("name", "city", "day"), ("price", "distance")),
}
_TEAMS = ("sales", "support", "design", "research", "finance")
_AGGREGATES = {
    "average": "AVG",
    "mean": "AVG",
    "total": "SUM",
    "highest": "MAX",
    "largest": "MAX",
    "lowest": "MIN",
    "smallest": "MIN",
}
_ORDERS = {"highest": " DESC", "largest": " DESC", "lowest": "", "smallest": ""}
_SIGNS = {"over": ">", "above": ">", "more than": ">", "under": "<", "below": "<", "less than": "<"}


def query_tables() -> dict[str, DrawRow]:
    by_value = draw_split(_row, lambda row: (row["table"], row["column"], row["value"]))
    by_number = draw_split(_row, lambda row: (row["table"], row["number"], row["n"]))
    return {
        "tables": from_rows([{"table": table} for table in SCHEMA]),
        "columns": lambda rng, _held_out: _row(rng),
        "values": by_value,
        "numbers": by_number,
    }


def _row(rng: Random) -> Row:
    """One choice for every slot of the wordings; what a question does not name is left over."""
    table = rng.choice(list(SCHEMA))
    texts, numbers = SCHEMA[table]
    column, number = rng.choice(texts), rng.choice(numbers)
    aggregate, order, compared = (
        rng.choice(list(words)) for words in (_AGGREGATES, _ORDERS, _SIGNS)
    )
    return {
        "table": table,
        "column": column,
        "other": rng.choice([text for text in texts if text != column]),
        "number": number,
        "value": _value(column, rng),
        "n": str(rng.randint(2, 999)),
        "aggregate": aggregate,
        "function": _AGGREGATES[aggregate],
        "extreme": order,
        "order": _ORDERS[order],
        "compared": compared,
        "sign": _SIGNS[compared],
        "limit": str(rng.randint(2, 20)),
    }


def _value(column: str, rng: Random) -> str:
    if column == "city":
        return draw_city(rng)
    if column == "team":
        return rng.choice(_TEAMS)
    if column == "title":
        return draw_part("thing", rng)
    return draw_part("day" if column == "day" else "name", rng)
