"""The command `hearth`: what it runs, and what it knows that the scripts do not."""

import os
import sys
from pathlib import Path
from unittest.mock import patch

import jwt
import pytest
from click.testing import CliRunner, Result

from common import __version__
from scripts.hearth import COMMANDS, main

# Another test has imported what is to run here: it runs afresh all the same.
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")

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
