"""Run clients against a server that is started for it, and print what came of it.

    python -m lab.clients                      # all
    python -m lab.clients codex opencode       # those whose names contain a word
    python -m lab.clients claude --at-once 3   # three sessions of each side by side
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.clients.client import MODEL, Client, all_clients
from lab.clients.model import make_model
from lab.clients.run import INSTALLS, InstallFailed, Run, install, run
from lab.clients.table import HEAD, Line, line_of, together, write_table
from lab.kit.servers import exit_on_sigterm, served

RUNS = INSTALLS / "runs"
ALIASES = "gpt-*"  # for clients that choose tools by a name they know; all else is as by default


def main() -> int:
    parser = argparse.ArgumentParser(description="Run agents and SDKs, unchanged, against Hearth.")
    parser.add_argument("words", nargs="*", help="only clients whose names contain one of these")
    parser.add_argument("--at-once", type=int, default=1, help="sessions of each client")
    parser.add_argument("--write", type=Path, help="a Markdown file with the two marks")
    arguments = parser.parse_args()
    exit_on_sigterm()
    clients = [client for client in all_clients() if _is_wanted(client, arguments.words)]
    with tempfile.TemporaryDirectory(prefix="hearth-clients-") as scratch:
        folder = Path(scratch)
        make_model(folder / MODEL)
        with served(folder / "log", MODEL=folder / MODEL, MODEL_ALIASES=ALIASES) as api:
            print(HEAD, flush=True)
            lines = [_tried(client, api.url, folder, arguments.at_once) for client in clients]
    if arguments.write:
        write_table(arguments.write, "\n".join([HEAD, *map(str, lines)]))
    return int(any(line.faults for line in lines))


def _is_wanted(client: Client, words: Sequence[str]) -> bool:
    return not words or any(word.lower() in client.name.lower() for word in words)


def _tried(client: Client, url: str, folder: Path, at_once: int) -> Line:
    try:
        installed = install(client)
    except InstallFailed as error:
        line = Line(client, faults=None, remarks=[f"cannot be installed here: {error}"])
    else:
        names = [f"{_file_name(client)}-{number}" for number in range(1, at_once + 1)]
        with ThreadPoolExecutor(at_once) as pool:
            runs = list(pool.map(lambda name: run(client, installed, url, folder / name), names))
        for name, ran in zip(names, runs, strict=True):
            _keep(ran, folder / name, RUNS / name)
        line = together([line_of(client, ran) for ran in runs])
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
