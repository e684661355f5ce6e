"""docs/benchmarking.md on llama-server, followed to the letter with a real one."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.fetch import answers_ok
from lab.kit.servers import ROOT, TIMEOUT_S, eventually
from lab.peers.install import PREBUILT_LLAMA
from tests.followed_pages import DOCS, Reader, served_by
from tests.ports import free_port

PAGE = DOCS / "benchmarking.md"
SHOWN = "http://127.0.0.1:8080"
MODEL = ROOT / "models" / "hearth-tiny"


def command(port: int) -> list[str]:
    """The page's, on another port; or the same server of the package that `make bench-peers`
    installs."""
    *words, shown = served_by(PAGE)
    assert shown == SHOWN.rpartition(":")[2]
    if shutil.which("llama-server"):
        return [*words, str(port)]
    if PREBUILT_LLAMA.python.is_file():
        module = [str(PREBUILT_LLAMA.python), "-m", PREBUILT_LLAMA.check]
        return [*module, "model.gguf", "--users", "4", "--port", str(port)]
    pytest.skip("there is no llama-server")


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    port = free_port()
    arguments = command(port)
    gguf = ["-m", "lab.models.gguf_file", "model", "model.gguf", "--type", "Q8_0"]
    environment = Reader(folder, {}).environment()
    subprocess.run(["python", *gguf], cwd=folder, env=environment, timeout=TIMEOUT_S, check=True)
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(arguments, cwd=folder, env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert server.poll() is None, (folder / "log").read_text()
        return answers_ok(f"{url}/health")

    try:
        eventually(answers)
        yield url
    finally:
        server.terminate()
        server.wait(timeout=TIMEOUT_S)


@pytest.mark.slow
def test_llama_server_is_measured_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to(MODEL)
    with serving(tmp_path) as url:
        (said,) = Reader(tmp_path, {SHOWN: url}).follow(PAGE)
    lines = said.splitlines()
    assert lines[-1].startswith(("Meets TTFT", "Misses "))
    (measured,) = (tmp_path / "var" / "benchmarks").iterdir()
    assert {"report.html", "metrics.json"} <= {path.name for path in measured.iterdir()}
    assert all(" answered" in line for line in lines if line.startswith("row "))
