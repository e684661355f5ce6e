"""Run clients against a server that is started for it, and print what came of it.

    python -m lab.clients                      # all
    python -m lab.clients codex opencode       # those whose names contain a word
    python -m lab.clients --write docs/clients.md

Logs and requests of a run lie in var/clients/runs.
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.clients.client import MODEL, Client, all_clients
from lab.clients.model import CONTEXT_TOKENS, make_model
from lab.clients.run import INSTALLS, InstallFailed, Run, install, run
from lab.clients.table import HEAD, Line, line_of, write_table
from lab.kit.servers import exit_on_sigterm, served

RUNS = INSTALLS / "runs"
SETTINGS: dict[str, Any] = {
    "USER_ROWS": 2,
    "MAX_SEQ_LEN": CONTEXT_TOKENS,
    "PREFILL_CHUNK_TOKENS": 2048,
    "MODEL_ALIASES": "gpt-*",
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run agents and SDKs, unchanged, against Hearth.")
    parser.add_argument("words", nargs="*", help="only clients whose names contain one of these")
    parser.add_argument("--write", type=Path, help="a Markdown file with the two marks")
    arguments = parser.parse_args()
    exit_on_sigterm()
    clients = [client for client in all_clients() if _is_wanted(client, arguments.words)]
    with tempfile.TemporaryDirectory(prefix="hearth-clients-") as scratch:
        folder = Path(scratch)
        make_model(folder / MODEL)
        with served(folder / "log", MODEL=folder / MODEL, **SETTINGS) as api:
            print(HEAD, flush=True)
            lines = [_tried(client, api.url, folder) for client in clients]
    if arguments.write:
        write_table(arguments.write, "\n".join([HEAD, *map(str, lines)]))
    return int(any(line.faults for line in lines))


def _is_wanted(client: Client, words: Sequence[str]) -> bool:
    return not words or any(word.lower() in client.name.lower() for word in words)


def _tried(client: Client, url: str, folder: Path) -> Line:
    own = folder / _file_name(client)
    try:
        ran = run(client, install(client), url, own)
    except InstallFailed as error:
        line = Line(client, faults=None, remarks=[f"cannot be installed here: {error}"])
    else:
        _keep(ran, own, RUNS / own.name)
        line = line_of(client, ran)
    print(line, flush=True)
    return line


def _keep(ran: Run, own: Path, kept: Path) -> None:
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    shutil.copy(own / "log", kept / "log")
    for number, exchange in enumerate(ran.exchanges, 1):
        head = {"method": exchange.method, "path": exchange.path, "status": exchange.status}
        head |= {"ignored": exchange.ignored, "refused": exchange.refused}
        body = exchange.body.decode(errors="replace")
        (kept / f"{number}.json").write_text(f"{json.dumps(head)}\n{body}\n")


def _file_name(client: Client) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{client.name} {client.api}".lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
