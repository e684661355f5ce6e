"""The command `hearth`: what it runs, and what it knows that the scripts do not."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import jwt
import pytest
from click.testing import CliRunner, Result

from common import __version__
from lab.kit.servers import TIMEOUT_S
from scripts.hearth import COMMANDS, main

SECRET = "the secret that serve has made in its directory"


def run(*arguments: str, **environment: str) -> Result:
    with patch.dict(os.environ, environment, clear=True), patch.object(sys, "argv", ["hearth"]):
        return CliRunner().invoke(main, arguments, prog_name="hearth")


def test_version_is_the_projects() -> None:
    assert run("--version").stdout == f"hearth {__version__}\n"


def test_help_lists_every_command() -> None:
    shown = run("--help").stdout
    assert all(f"  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_names_it_and_starts_nothing(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"hearth {name} [" in result.stdout.lower().splitlines()[0]


@pytest.mark.parametrize("name", ["optimizer", "weights"])
def test_an_argument_that_nobody_knows_starts_nothing(name: str) -> None:
    assert run(name, "--nope").exit_code == 2


def test_what_follows_two_dashes_is_the_engines_own(tmp_path: Path) -> None:
    drive = ("weights", "drive", "command", "--variable", "SPLIT", "--stages", "2", "--layers", "2")
    server = str(tmp_path / "server")
    result = run(*drive, "--model", "m", "--", server, "--stages", "3", WEIGHTS_DB=f"{server}.db")
    assert result.exit_code == 1
    assert f"weights drive command: {server} does not start" in result.output


def test_listing_the_commands_imports_none() -> None:
    code = (
        "import sys; from scripts.hearth import COMMANDS, main;"
        "main(['--help'], standalone_mode=False);"
        "sys.exit(bool({each.module for each in COMMANDS.values()} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=TIMEOUT_S).returncode == 0


@pytest.fixture
def served_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory in which `hearth serve` has run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "jwt_secret").write_text(SECRET)


@pytest.mark.usefixtures("served_here")
def test_tokens_are_made_with_the_secret_that_serve_keeps() -> None:
    token = run("token", "encode", '{"team_id": "a", "token_id": "b"}').stdout.strip()
    assert jwt.decode(token, SECRET, algorithms=["HS256"]) == {"team_id": "a", "token_id": "b"}


@pytest.mark.usefixtures("served_here")
def test_a_secret_that_was_given_goes_before_the_kept_one() -> None:
    given = "another secret, which is long enough for it"
    token = run("token", "encode", "{}", JWT_SECRET=given).stdout.strip()
    assert jwt.decode(token, given, algorithms=["HS256"]) == {}


def test_without_a_secret_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("token", "encode", "{}")
    assert result.exit_code == 1
    assert "pass --secret, set JWT_SECRET" in result.stderr


def test_a_command_whose_part_is_not_installed_names_the_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scripts.hearth.find_spec", lambda _: None)
    result = run("serve")
    assert result.exit_code == 1
    assert "pip install 'hearth[serve]'" in result.stderr
    assert run("token", "--help").exit_code == 0  # it needs none
