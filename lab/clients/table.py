"""What a run showed, as a line of a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.clients.client import NOTE_TEXT, PROMPT, Client
from lab.clients.forwarder import Exchange
from lab.clients.run import RUN_TIMEOUT_S, Run

BEGIN, END = "<!-- clients: begin -->", "<!-- clients: end -->"
COLUMNS = ("client", "version", "API", "unchanged", "fields left aside", "remarks")
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


@dataclass(frozen=True, slots=True)
class Line:
    """`faults` say why the client is not served unchanged; None: it could not be installed."""

    client: Client
    ignored: Sequence[str] = ()
    faults: Sequence[str] | None = ()
    remarks: Sequence[str] = ()

    def __str__(self) -> str:
        verdict = "not tried" if self.faults is None else "no" if self.faults else "yes"
        version = self.client.package[1] if self.client.packages else ""
        cells = [self.client.name, version, f"`{self.client.api}`", verdict]
        cells += [", ".join(f"`{name}`" for name in self.ignored)]
        cells += ["; ".join([*(self.faults or ()), *self.remarks])]
        return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def line_of(client: Client, run: Run) -> Line:
    """Returns what the run shows: served unchanged where nothing was refused, every planned call
    was made and its result came back, and the client ended well."""
    ignored = sorted({name for exchange in run.exchanges for name in exchange.ignored})
    refused = [exchange for exchange in run.exchanges if exchange.refused]
    faults = {_answer_line(exchange) for exchange in refused if not exchange.has_way_out}
    remarks = {
        f"goes on after {_answer_line(exchange)}" for exchange in refused if exchange.has_way_out
    }
    return Line(client, ignored, [*sorted(faults), *_unfinished(client, run)], sorted(remarks))


def together(lines: Sequence[Line]) -> Line:
    """Returns one line of several runs of a client: whatever any of them showed."""
    return Line(
        lines[0].client,
        sorted({name for line in lines for name in line.ignored}),
        sorted({fault for line in lines for fault in line.faults or ()}),
        sorted({remark for line in lines for remark in line.remarks}),
    )


def write_table(path: Path, table: str) -> None:
    """Put the table between the two marks of the file."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def _answer_line(exchange: Exchange) -> str:
    path = exchange.path.partition("?")[0]
    return f"{exchange.method} `{path}` {exchange.status}: {exchange.refused}"


def _unfinished(client: Client, run: Run) -> list[str]:
    asked = [exchange for exchange in run.exchanges if exchange.is_generating]
    faults = []
    if not asked:
        faults.append("it asked nothing")
    if run.num_calls < len(client.calls):
        faults.append(f"{run.num_calls} of {len(client.calls)} calls made")
    elif client.reads_note:
        whole = {"question": PROMPT, "result": NOTE_TEXT.strip()}
        missing = [part for part, text in whole.items() if text.encode() not in asked[-1].body]
        faults += [f"the last request has no {part}" for part in missing]
    if run.exit_code is None:
        faults.append(f"it did not end in {RUN_TIMEOUT_S} s")
    elif run.exit_code:
        faults.append(f"it ended with {run.exit_code}")
    if run.note != client.leaves:
        faults.append(f"it left {run.note!r} in the note")
    return faults
