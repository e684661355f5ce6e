"""scripts/jwt_util.py as its users run it: a command with output, errors and an exit status."""

import json
import os
import subprocess
import sys
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import jwt
import pytest

from lab.kit.servers import TIMEOUT_S
from scripts import jwt_util

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "jwt_util.py"
CLAIMS = '{"team_id": "tenstorrent", "token_id": "debug-test"}'


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing has been served, so that no secret is kept."""
    monkeypatch.chdir(tmp_path)


@dataclass(frozen=True, slots=True)
class Finished:
    returncode: object
    stdout: str
    stderr: str


def run(*arguments: str, **environment: str) -> Finished:
    """The command in this process, which is quicker than a Python of its own for each."""
    with (
        patch.dict(os.environ, environment, clear=True),
        warnings.catch_warnings(),
        redirect_stdout(StringIO()) as output,
        redirect_stderr(StringIO()) as errors,
    ):
        try:
            status: object = jwt_util.main(arguments)
        except SystemExit as end:
            status = end.code
    return Finished(status, output.getvalue(), errors.getvalue())


def succeed(*arguments: str, **environment: str) -> str:
    result = run(*arguments, **environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("\n")
    return result.stdout[:-1]


def fail(*arguments: str, **environment: str) -> str:
    result = run(*arguments, **environment)
    assert (result.returncode, result.stdout) == (1, "")
    return result.stderr


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
@pytest.mark.parametrize("secret", ["test-secret-456", "a" * 40, "ünïcode", "S"])
def test_documented_command_prints_pyjwts_bytes(secret: str) -> None:
    expected = jwt.encode(json.loads(CLAIMS), secret, algorithm="HS256")
    assert succeed("--secret", secret, "encode", CLAIMS) == expected


@pytest.mark.slow
def test_documented_token_is_this_very_string() -> None:
    command = [sys.executable, str(SCRIPT), "--secret", "test-secret-456", "encode", CLAIMS]
    result = subprocess.run(command, env={}, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.rstrip() == (
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9."
        "eyJ0ZWFtX2lkIjoidGVuc3RvcnJlbnQiLCJ0b2tlbl9pZCI6ImRlYnVnLXRlc3QifQ."
        "LZeuFMVFzgxD91sDR79qlfDogPHUCG9lLopctYKYvnI"
    )


@pytest.mark.slow
def test_script_can_be_executed_directly() -> None:
    # By its first line, which asks for python3: here the one that runs the tests.
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    result = subprocess.run(
        [SCRIPT, "--help"], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert result.returncode == 0
    assert "generate-secret" in result.stdout


def test_decode_prints_the_claims_as_json() -> None:
    token = succeed("encode", CLAIMS, JWT_SECRET="x" * 32)
    assert json.loads(succeed("decode", token, JWT_SECRET="x" * 32)) == json.loads(CLAIMS)


def test_secret_option_wins_over_the_environment() -> None:
    token = succeed("--secret", "given", "encode", CLAIMS, JWT_SECRET="from-environment")
    assert token == succeed("encode", CLAIMS, JWT_SECRET="given")
    assert token == succeed("encode", CLAIMS, "--secret", "given")


@pytest.mark.parametrize(
    ("duration", "expected_s"), [("90s", 90), ("15m", 900), ("24h", 86400), ("30d", 2592000)]
)
def test_expires_in_sets_exp(duration: str, expected_s: int) -> None:
    before_s = int(time.time())
    token = succeed("--secret", "s", "encode", CLAIMS, "--expires-in", duration)
    claims = json.loads(succeed("--secret", "s", "decode", token))
    assert before_s + expected_s <= claims["exp"] <= time.time() + expected_s


def test_add_makes_a_token_of_the_team_with_the_kept_secret(tmp_path: Path) -> None:
    kept = tmp_path / jwt_util.SECRET_PATH
    kept.parent.mkdir()
    kept.write_text("s" * 43)
    claims = json.loads(succeed("decode", succeed("add", "research", "--role", "viewer")))
    assert claims == {"team_id": "research", "token_id": claims["token_id"], "role": "viewer"}
    assert len(claims["token_id"]) == 8
    named = json.loads(succeed("decode", succeed("add", "a", "--token-id", "b")))
    assert named == {"team_id": "a", "token_id": "b"}


@pytest.mark.parametrize("content", [None, b"", b"\xff"], ids=["a folder", "empty", "no text"])
def test_a_kept_secret_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    kept = tmp_path / jwt_util.SECRET_PATH
    kept.parent.mkdir()
    if content is None:
        kept.mkdir()
    else:
        kept.write_bytes(content)
    assert "no secret that can be read; pass --secret, set JWT_SECRET" in fail("add", "research")


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_algorithm_is_used_and_pinned(algorithm: str) -> None:
    token = succeed("--secret", "s", "--algorithm", algorithm, "encode", CLAIMS)
    assert jwt.get_unverified_header(token)["alg"] == algorithm
    assert succeed("--secret", "s", "--algorithm", algorithm, "decode", token)
    other = "HS256" if algorithm != "HS256" else "HS512"
    assert "alg" in fail("--secret", "s", "--algorithm", other, "decode", token)


def test_generated_secrets_are_long_and_differ() -> None:
    first, second = succeed("generate-secret"), succeed("generate-secret")
    assert first != second
    assert len(first) >= 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encode", CLAIMS], "no secret"),
        (["--secret", "", "encode", CLAIMS], "no secret"),
        (["--secret", "s", "encode", "not json"], "not JSON"),
        (["--secret", "s", "encode", "[1]"], "JSON object"),
        (["--secret", "s", "encode", "[" * 20_000], "recursion"),
        (["--secret", "\udcff", "encode", CLAIMS], "utf-8"),
        (["--secret", "s", "encode", CLAIMS, "--expires-in", "soon"], "not a duration"),
        (["--secret", "s", "encode", CLAIMS, "--expires-in", "0h"], "not a duration"),
        (["--secret", "s", "decode", "abc"], "segments"),
        (["--secret", "s", "--algorithm", "none", "encode", CLAIMS], "invalid choice"),
        (["--secret", "s", "add", "two words"], "without blanks"),
        (["--secret", "s", "add", "a", "--token-id", ""], "without blanks"),
        (["--secret", "s", "add", "a", "--role", "admin"], "invalid choice"),
        (["--secret", "s"], "COMMAND"),
        ([], "COMMAND"),
    ],
)
def test_errors_go_to_standard_error_with_exit_1(arguments: list[str], message: str) -> None:
    assert message in fail(*arguments)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e400", '[{"a": Infinity}]'])
@pytest.mark.parametrize("name", ["exp", "team_id"])
def test_numbers_that_json_lacks_make_no_token(name: str, value: str) -> None:
    claims = f'{{"{name}": {value}}}'
    assert "the claims are not JSON" in fail("--secret", "s" * 32, "encode", claims)


def test_wrong_secret_and_expired_token_are_errors() -> None:
    token = succeed("--secret", "s", "encode", CLAIMS)
    assert "Signature" in fail("--secret", "other", "decode", token)
    expired = succeed("--secret", "s", "encode", '{"exp": 1}')
    assert "expired" in fail("--secret", "s", "decode", expired)


@pytest.mark.slow
def test_a_python_without_pyjwt_is_left_for_that_of_the_clone(tmp_path: Path) -> None:
    script = tmp_path / "scripts" / "jwt_util.py"
    script.parent.mkdir()
    script.write_bytes(SCRIPT.read_bytes())
    command = ["python3", "-I", "-S", str(script), "generate-secret"]  # -S: no site-packages
    alone = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "make serve" in alone.stderr
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    installed = tmp_path / ".venv" / "bin" / "python"
    installed.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    installed.chmod(0o755)
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert len(result.stdout) == 65


@pytest.mark.slow
def test_it_needs_only_pyjwt() -> None:
    code = (
        f"import runpy, sys; runpy.run_path({str(SCRIPT)!r});"
        "print({name.partition('.')[0] for name in sys.modules} & "
        "{'proxy', 'click', 'pydantic', 'requests', 'flask'})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert result.stdout == "set()\n"
