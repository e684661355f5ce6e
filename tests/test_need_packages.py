"""What `make test` says of Debian packages that are missing, as anybody but root."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "lab" / "need_packages.sh"
NEEDED = ("chromium", "redis-server")
APT = "sudo apt-get install"
PLAYWRIGHT = ".venv/bin/playwright install --with-deps chromium"


@pytest.mark.parametrize(
    ("release", "found", "remedy"),
    [
        ("debian", NEEDED, ""),
        ("debian", (), f"{APT} chromium redis-server"),
        ("debian", ("redis-server",), f"{APT} chromium"),
        ("ubuntu", (), f"{APT} redis-server && {PLAYWRIGHT}"),
        ("ubuntu", ("redis-server",), PLAYWRIGHT),
        ("ubuntu", ("redis-server", "browsers/chromium-1200"), ""),
    ],
)
def test_the_remedy_is_one_line_to_paste(
    tmp_path: Path, release: str, found: tuple[str, ...], remedy: str
) -> None:
    tools = {"id": "echo 1000"} | {name: f"exec {shutil.which(name)} $@" for name in ("grep", "ls")}
    for name, line in (tools | dict.fromkeys(found, "")).items():
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    (tmp_path / "release").write_text(f"NAME=x\nID={release}\n")
    places = {"OS_RELEASE": tmp_path / "release", "PLAYWRIGHT_BROWSERS_PATH": tmp_path / "browsers"}
    env = {name: str(path) for name, path in (places | {"PATH": tmp_path}).items()}
    result = subprocess.run(
        ["/bin/sh", str(SCRIPT), *NEEDED], env=env, capture_output=True, text=True, check=False
    )
    assert result.returncode == bool(remedy)
    assert result.stderr.partition("Install with: ")[2].strip() == remedy
