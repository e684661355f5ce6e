"""`make first-token`: how long it takes from a clone to the first token, and what is installed.

Does what a new user does, in a scratch folder and with empty caches of packages: clones this
repository as it is committed, runs `make serve`, and runs the curl line that it prints. Arguments
go to make.
"""

import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PORTS = ("SERVICE_PORT", "PROXY_PORT", "PROXY_METRICS_PORT")
END_TIMEOUT_S = 60
MB = 1e6


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="hearth-first-token-") as name:
        folder = Path(name)
        clone, cache = folder / "hearth", folder / "cache"
        begin = time.time()
        # As a URL, so that git packs what it would send; from a path it links files.
        subprocess.run(["git", "clone", "--quiet", TOP.as_uri(), clone], check=True)
        cloned = time.time()
        serve = make_serve(clone, {"UV_CACHE_DIR": f"{cache}/uv", "PIP_CACHE_DIR": f"{cache}/pip"})
        try:
            line = curl_line(serve)
            ready = time.time()
            installed = (clone / ".venv" / "serve.stamp").stat().st_mtime
            wait_for_a_byte(line)
            answered = time.time()
            rss_mb = largest_rss_mb(clone)
        finally:
            os.killpg(serve.pid, signal.SIGTERM)
            serve.wait(END_TIMEOUT_S)
        print("| | s |\n|---|---|")
        print(f"| clone | {cloned - begin:.1f} |\n| install | {installed - cloned:.1f} |")
        print(f"| compile the kernels and start | {ready - installed:.1f} |")
        print(f"| first token | {answered - ready:.2f} |\n| total | {answered - begin:.1f} |")
        print(f"\ngit cloned {size_mb(list((clone / '.git').rglob('*'))):.0f} MB", end="")
        print(f", the caches have {size_mb(list(cache.rglob('*'))):.0f} MB", end="")
        print(f"; .venv has {size_mb(list((clone / '.venv').rglob('*'))):.0f} MB", end="")
        print(f", the API holds {rss_mb:.0f} MB")
    return 0


def make_serve(clone: Path, settings: dict[str, str]) -> subprocess.Popen[str]:
    environment = dict(os.environ, **settings)  # noqa: TID251 - handed on to make
    environment.pop("PYTHONPATH", None)
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
    for name, probe in zip(PORTS, probes, strict=True):
        environment[name] = str(probe.getsockname()[1])
        probe.close()
    return subprocess.Popen(
        ["make", "serve", *sys.argv[1:]],
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def curl_line(serve: subprocess.Popen[str]) -> str:
    """The line that it prints once it serves. Ends the program if it does not."""
    assert serve.stdout is not None
    lines = []
    for line in serve.stdout:
        lines.append(line)
        if line.startswith("curl "):
            return line.strip()
    sys.exit(f"make serve has ended:\n{''.join(lines)}")


def wait_for_a_byte(line: str) -> None:
    with subprocess.Popen(["sh", "-c", f"exec {line} -sS"], stdout=subprocess.PIPE) as curl:
        assert curl.stdout is not None
        first = curl.stdout.read(1)
        curl.terminate()
    if not first:
        sys.exit(f"no token came of {line}")


def largest_rss_mb(clone: Path) -> float:
    """Resident memory of the largest process that was started in the clone: the API's worker."""
    found = [0.0]
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            if str(clone).encode() in (folder / "cmdline").read_bytes():
                pages = int((folder / "statm").read_text().split()[1])
                found.append(pages * mmap.PAGESIZE / MB)
    return max(found)


def size_mb(paths: list[Path]) -> float:
    """Of those that are files; links count nothing."""
    files = (path for path in paths if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / MB


if __name__ == "__main__":
    sys.exit(main())
