"""Routes: which servers answer requests for a model, in which shares and order. A YAML file:

    routes:
      chat:
        - {server: stable, weight: 95}
        - {server: canary, weight: 5}
        - {server: spare, priority: 1}

A server is a name that replicas have in common. Immutable; pure functions.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Collection
from typing import Annotated

from pydantic import Field, model_validator

from proxy.files import Entry, read_yaml, validated


class RouteBackend(Entry):
    """A server of a route. The lowest `priority` is asked first; `weight` is a share within it."""

    server: Annotated[str, Field(min_length=1, max_length=128)]
    weight: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    priority: Annotated[int, Field(ge=0, le=9)] = 0


Backends = Annotated[tuple[RouteBackend, ...], Field(min_length=1, max_length=64)]


class Routes(Entry):
    """The whole file. A model without a route may go to any server that has it."""

    routes: dict[str, Backends] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_once(self) -> "Routes":
        for model, backends in self.routes.items():
            counts = Counter((each.server, each.priority) for each in backends)
            (server, priority), count = counts.most_common(1)[0]
            if count > 1:
                raise ValueError(
                    f"routes.{model}: server '{server}' is there {count} times with priority "
                    f"{priority}; keep one, with a higher weight"
                )
        return self

    def of(self, model: str | None) -> tuple[RouteBackend, ...]:
        return self.routes.get(model or "", ())


NO_ROUTES = Routes()


def parse_routes(text: str) -> Routes:
    """Returns the routes in a file. Raises ValueError that names every faulty entry."""
    return validated(Routes, read_yaml(text) or {})


def servers_in_turn(
    backends: Collection[RouteBackend], present: Collection[str], key: str
) -> list[str]:
    """Returns one server of each priority, in the order in which to ask them. The key chooses it
    among those in `present`, each of which gets a share of all keys by its weight."""
    chosen = []
    for priority in sorted({each.priority for each in backends}):
        peers = [e for e in backends if e.priority == priority and e.server in present]
        if peers:
            chosen.append(max(peers, key=lambda e: rendezvous(key, e.server, e.weight)).server)
    return chosen


def rendezvous(key: str, name: str, weight: float) -> float:
    """Returns a name's score for a key. Over all keys, names have the highest score in proportion
    to their weights. Weighted rendezvous hashing: -weight / ln(hash), hash uniform in (0, 1)."""
    # JSON may hold half of a surrogate pair, which plain UTF-8 cannot encode.
    text = f"{name}\0{key}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8).digest()
    uniform = (int.from_bytes(digest, "big") + 1) / (2**64 + 2)
    return -weight / math.log(uniform)
