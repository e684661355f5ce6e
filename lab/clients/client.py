"""What there is to know of a client, as data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from lab.clients.steering import END, Call

SCRIPTS = Path(__file__).parent / "scripts"
MODEL = "tiny"
NOTE = "note.txt"
NOTE_TEXT = "The kettle is on.\n"
PROMPT = f"Read {NOTE} and say what is in it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A package of npm's or pip's, and one run of it that asks no questions.

    In texts, `$url` is the server, `$model` its model, `$home` and `$work` folders of the run and
    `$bin` where the package's commands are.
    """

    name: str
    api: str
    command: Sequence[str]
    npm: Sequence[str] = ()  # packages with their versions; the first is the client
    pip: Sequence[str] = ()
    before: Sequence[Sequence[str]] = ()  # commands that set it up
    calls: Sequence[Call] = ()
    is_ended_by_call: bool = False  # by the last; else by a text
    end: str = END
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # by path, $home or $work first
    leaves: str = NOTE_TEXT  # in the note, after the run

    @property
    def packages(self) -> Sequence[str]:
        return self.npm or self.pip

    @property
    def reads_note(self) -> bool:
        """Whether the last request must hold what the note says."""
        return len(self.calls) > self.is_ended_by_call

    @property
    def version(self) -> str:
        return self.packages[0].rpartition("@" if self.npm else "==")[2]

    @property
    def folder_name(self) -> str:
        package = self.packages[0].rpartition("@" if self.npm else "==")[0]
        name = package.partition("[")[0].strip("@").replace("/", "-")
        return f"{'npm' if self.npm else 'pip'}-{name}"


def filled(text: str, places: Mapping[str, str]) -> str:
    return Template(text).substitute(places)
