"""What a run showed, as a line of a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.clients.client import NOTE_TEXT, Client
from lab.clients.run import RUN_TIMEOUT_S, Run

BEGIN, END = "<!-- clients: begin -->", "<!-- clients: end -->"
HEAD = "| client | version | API | unchanged | fields left aside | remarks |\n|---|---|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Line:
    client: Client
    ignored: Sequence[str]
    remarks: Sequence[str]  # why it is not served unchanged; none: it is
    is_installed: bool = True

    def __str__(self) -> str:
        verdict = "yes" if not self.remarks else "no" if self.is_installed else "not tried"
        cells = [self.client.name, self.client.version, f"`{self.client.api}`", verdict]
        cells += [", ".join(f"`{name}`" for name in self.ignored), "; ".join(self.remarks)]
        return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def line_of(client: Client, run: Run) -> Line:
    """Returns what the run shows: served unchanged where nothing was refused, every planned call
    was made and its result came back, and the client ended well."""
    ignored = sorted({name for exchange in run.exchanges for name in exchange.ignored})
    refused = {
        f"{exchange.method} {exchange.path}: {exchange.status} {exchange.refused}"
        for exchange in run.exchanges
        if exchange.refused
    }
    return Line(client, ignored, [*sorted(refused), *_unfinished(client, run)])


def write_table(path: Path, table: str) -> None:
    """Put the table between the two marks of the file."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def _unfinished(client: Client, run: Run) -> list[str]:
    asked = [exchange for exchange in run.exchanges if exchange.is_generating]
    remarks = []
    if not asked:
        remarks.append("it asked nothing")
    if run.num_calls < len(client.calls):
        remarks.append(f"{run.num_calls} of {len(client.calls)} calls made")
    elif client.reads_note and NOTE_TEXT.strip().encode() not in asked[-1].body:
        remarks.append("no result came back")
    if run.exit_code is None:
        remarks.append(f"it did not end in {RUN_TIMEOUT_S} s")
    elif run.exit_code:
        remarks.append(f"it ended with {run.exit_code}")
    if run.note != client.leaves:
        remarks.append(f"it left {run.note!r} in the note")
    return remarks
