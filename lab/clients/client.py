"""What there is to know of a client, as data: clients.toml."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from lab.clients.steering import Call

FOLDER = Path(__file__).parent
MODEL = "tiny"
NOTE = "note.txt"
NOTE_TEXT = "The kettle is on.\n"
PROMPT = f"Read {NOTE} and say what is in it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A package of npm's or pip's, and one run of it that asks no questions."""

    name: str
    api: str
    npm: Sequence[str] = ()  # packages with their versions; the first is the client
    pip: Sequence[str] = ()
    before: Sequence[Sequence[str]] = ()  # commands that set it up
    agent: str = ""  # for `hearth agent`
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # text by path
    calls: Sequence[Call] = ()  # that the model is led to
    is_ended_by_call: bool = False  # by the last; else by `end`
    end: str = "Done."
    leaves: str = NOTE_TEXT  # in the note, after the run

    @property
    def packages(self) -> Sequence[str]:
        return self.npm or self.pip

    @property
    def package(self) -> tuple[str, str]:
        """The first one's name and version."""
        name, _, version = self.packages[0].rpartition("@" if self.npm else "==")
        return name.partition("[")[0], version

    @property
    def bin(self) -> str:
        return "node_modules/.bin" if self.npm else "venv/bin"

    @property
    def reads_note(self) -> bool:
        """Whether the last request must hold what the note says."""
        return len(self.calls) > self.is_ended_by_call


def all_clients() -> list[Client]:
    records = tomllib.loads((FOLDER / "clients.toml").read_text())["clients"]
    return [_client(record) for record in records]


def filled(text: str, places: Mapping[str, str]) -> str:
    return Template(text).substitute(places)


def _client(record: dict[str, Any]) -> Client:
    calls = [Call(**call) for call in record.pop("calls", ())]
    return Client(**record, calls=calls)
