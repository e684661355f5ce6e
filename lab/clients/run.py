"""Installs a client and runs it once, away from the project and from the network."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from inference_api.agents import agents
from lab.clients.client import FOLDER, MODEL, NOTE, NOTE_TEXT, PROMPT, Client, filled
from lab.clients.forwarder import Exchange, Recorder, forwarding
from lab.clients.model import CONTEXT_TOKENS
from lab.clients.steering import Call
from lab.kit.servers import ROOT

INSTALLS = ROOT / "var" / "clients"
BIN = Path(sys.executable).parent  # where Node's wheel has put it
INSTALL_TIMEOUT_S = 1200
RUN_TIMEOUT_S = 180
PRINTED_FILE = re.compile(r"In `([^`]+)`:\n\n```\w+\n(.*?)```", re.DOTALL)
PRINTED_SHELL = re.compile(r"in a shell:\n\n```sh\n(.*?)\n```", re.DOTALL | re.IGNORECASE)
NOWHERE = "http://127.0.0.1:9"  # whatever a client asks of other hosts ends there


class InstallFailed(Exception):
    """A package that cannot be had here."""


@dataclass(frozen=True, slots=True)
class Run:
    exit_code: int | None  # None: it did not end in time
    exchanges: Sequence[Exchange]
    num_calls: int
    note: str  # what the note says afterwards


def install(client: Client) -> Path:
    """Returns the folder where the client is. Raises InstallFailed."""
    if not client.packages:
        raise InstallFailed("no package of npm's or pip's has it")
    kind, name = "npm" if client.npm else "pip", client.package[0]
    folder = INSTALLS / re.sub(r"\W+", "-", f"{kind} {name}")
    done = folder / "installed"
    wanted = "\n".join(client.packages)
    if not done.exists() or done.read_text() != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        for command in _install_commands(client, folder):
            _install(command, folder)
        done.write_text(wanted)
    return folder


def run(client: Client, installed: Path, upstream: str, folder: Path) -> Run:
    """Run it in `folder`, which is empty, against the server at `upstream`."""
    places = {name: str(folder / name) for name in ("home", "work", "log")}
    places |= {"install": str(installed), "bin": str(installed / client.bin)}
    places |= {"scripts": str(FOLDER / "scripts"), "model": MODEL, "prompt": PROMPT}
    calls = [_placed(call, places) for call in client.calls]
    recorder = Recorder(upstream, calls, client.end)
    with forwarding(recorder) as url:
        places["url"] = url
        files = {filled(path, places): filled(text, places) for path, text in client.files.items()}
        commands = [
            [filled(word, places) for word in each] for each in (*client.before, client.command)
        ]
        if client.agent:
            printed, script = as_printed(client.agent, places)
            files |= printed
            commands[-1][:0] = ["sh", "-ec", f'{script} "$@"', "sh"]
        _lay(files, places)
        exit_codes = [_run(client, command, places) for command in commands]
    note = (folder / "work" / NOTE).read_text()
    return Run(exit_codes[-1], recorder.exchanges, recorder.num_calls, note)


def as_printed(agent: str, places: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Returns the files that `hearth agent` prints, by path, and the lines of a shell."""
    text = agents()[agent].filled_in(places["url"], MODEL, CONTEXT_TOKENS)
    files = {
        str(Path(places["work"], path.replace("~", places["home"]))): file
        for path, file in PRINTED_FILE.findall(text)
    }
    return files, PRINTED_SHELL.findall(text)[0]


def _install_commands(client: Client, folder: Path) -> list[list[str]]:
    if client.npm:
        (folder / "package.json").write_text('{"private": true}')
        quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
        return [[str(BIN / "npm"), "install", *quiet, *client.npm]]
    python = str(folder / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
    return [[sys.executable, "-m", "venv", str(folder / "venv")], [*pip, *client.pip]]


def _install(command: Sequence[str], folder: Path) -> None:
    try:
        ran = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InstallFailed(f"its install took over {INSTALL_TIMEOUT_S} s") from None
    if ran.returncode:
        raise InstallFailed((ran.stderr or ran.stdout).strip().splitlines()[-1])


def _placed(call: Call, places: Mapping[str, str]) -> Call:
    return Call(call.tool, json.loads(filled(json.dumps(call.arguments), places)))


def _lay(files: Mapping[str, str], places: Mapping[str, str]) -> None:
    work = Path(places["work"])
    for folder in (work, Path(places["home"])):
        folder.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet"], cwd=work, check=True)
    (work / NOTE).write_text(NOTE_TEXT)
    for path, text in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)


def _run(client: Client, command: Sequence[str], places: Mapping[str, str]) -> int | None:
    with Path(places["log"]).open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=places["work"],
            env=_environment(client, places),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            return process.wait(RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):  # some leave a server behind
                os.killpg(process.pid, signal.SIGKILL)


def _environment(client: Client, places: Mapping[str, str]) -> dict[str, str]:
    own = {name: filled(text, places) for name, text in client.environment.items()}
    return {
        "PATH": f"{places['bin']}:{BIN}:/usr/local/bin:/usr/bin:/bin",
        "HOME": places["home"],
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "CI": "1",
        "DO_NOT_TRACK": "1",
        "HEARTH_TOKEN": "made-up",
        "HTTP_PROXY": NOWHERE,
        "HTTPS_PROXY": NOWHERE,
        "NO_PROXY": "127.0.0.1,localhost",
    } | own
