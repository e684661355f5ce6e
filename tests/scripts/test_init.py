"""`hearth init`: secrets once, for their owner alone."""

import stat
from pathlib import Path

import pytest

from scripts import init


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_secrets_are_written_for_their_owner_alone(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init.main([]) == 0
    assert stat.S_IMODE(init.ENV.stat().st_mode) == 0o600
    assert list(here.iterdir()) == [here / ".env"]
    secret = init.ENV.read_text().split("JWT_SECRET=")[1].split()[0]
    assert len(secret) >= 64
    assert secret not in capsys.readouterr().out


def test_what_is_there_stays(capsys: pytest.CaptureFixture[str]) -> None:
    init.ENV.write_text("JWT_SECRET=mine\n")
    assert init.main([]) == 1
    assert init.ENV.read_text() == "JWT_SECRET=mine\n"
    assert "--force" in capsys.readouterr().err


def test_force_replaces_a_file_and_not_what_a_link_leads_to(here: Path) -> None:
    other = here / "other"
    other.write_text("somebody's")
    init.ENV.symlink_to(other)
    assert init.main([]) == 1
    assert init.main(["--force"]) == 0
    assert other.read_text() == "somebody's"
    assert stat.S_IMODE(init.ENV.lstat().st_mode) == 0o600
    assert "JWT_SECRET=" in init.ENV.read_text()


def test_where_nothing_can_be_written_the_remedy_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init, "ENV", here / "missing" / ".env")
    assert init.main([]) == 1
    assert "run this in your clone" in capsys.readouterr().err
