"""Turns of a service that say when they begin and end."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from common.turns import Turns


def recorded_turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the list that they add to."""
    said: list[str] = []

    @contextmanager
    def taken(self: Turns) -> Iterator[None]:
        said.append("begin")
        try:
            yield
        finally:
            said.append("end")

    monkeypatch.setattr(Turns, "taken", taken)
    return said
