#!/usr/bin/env python3
"""Make and read the tokens that the proxy checks. Needs only PyJWT.

    jwt_util.py add research
    jwt_util.py --secret S encode '{"team_id": "tenstorrent", "token_id": "debug-test"}'
    jwt_util.py encode '{"team_id": "a", "token_id": "laptop"}' --expires-in 24h
    jwt_util.py decode TOKEN
    jwt_util.py generate-secret

The secret is --secret, else JWT_SECRET from the environment, else the one that `make serve` has
made in var/ of the current directory. Standard output has only the result, so that
`TOKEN=$(jwt_util.py ...)` works. Errors go to standard error, with exit status 1.
"""

import argparse
import json
import os
import re
import secrets
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

try:
    import jwt
except ModuleNotFoundError:
    # The system's Python may run this in a clone, where `make` has installed PyJWT in .venv.
    venv = Path(__file__).resolve().parent.parent / ".venv"
    if Path(sys.prefix) == venv or not (venv / "bin" / "python").exists():
        sys.exit("error: PyJWT is missing; run `make serve` once, or `pip install pyjwt`")
    os.execv(venv / "bin" / "python", ["python", *sys.argv])

SECRET_PATH = Path("var") / "jwt_secret"  # made by scripts/serve.py
NAME = re.compile(r"[!-~]{1,128}")
ROLES = ("viewer", "operator")
ALGORITHMS = ("HS256", "HS384", "HS512")
SECRET_BYTES = 32
SECONDS_BY_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def encode(claims_json: str, secret: str, algorithm: str, expires_in_s: int | None) -> str:
    """Returns the compact token for a JSON object of claims, with the same bytes as PyJWT's."""
    try:
        claims = json.loads(claims_json)
        json.dumps(claims, allow_nan=False)  # else a token would hold what is no JSON
    except ValueError as error:
        raise ValueError(f"the claims are not JSON: {error}") from None
    if not isinstance(claims, dict):
        raise ValueError("the claims must be a JSON object")
    if expires_in_s is not None:
        claims["exp"] = int(time.time()) + expires_in_s
    return jwt.encode(claims, secret, algorithm=algorithm)


def team_claims(arguments: argparse.Namespace) -> str:
    """Returns the claims of a team's token as JSON."""
    token_id = arguments.token_id or secrets.token_hex(4)
    claims = {"team_id": arguments.team, "token_id": token_id}
    if arguments.role is not None:
        claims["role"] = arguments.role
    return json.dumps(claims)


def decode(token: str, secret: str, algorithm: str) -> str:
    """Returns the claims of a token as JSON, after checking its signature and times."""
    claims: dict[str, Any] = jwt.decode(
        token, secret, algorithms=[algorithm], options={"verify_aud": False}
    )
    return json.dumps(claims)


def parse_duration_s(text: str) -> int:
    """Returns the seconds of a duration such as 90s, 15m, 24h or 30d; a bare number is seconds."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a duration such as 90s, 15m, 24h, 30d")
    return int(match[1]) * SECONDS_BY_UNIT[match[2] or "s"]


def parse_name(text: str) -> str:
    """Returns the name of a team or token, if the proxy would accept it."""
    if NAME.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a name: 1 to 128 printable ASCII characters without blanks"
        )
    return text


class Parser(argparse.ArgumentParser):
    """Exits with status 1 for a wrong command line, where argparse exits with 2."""

    def error(self, message: str) -> Any:
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: error: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    # Options may come before or after the command. The defaults of options after it must not
    # replace values that were given before it.
    common = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument(
        "--secret", help="signing secret (default: JWT_SECRET, else that of `hearth serve` here)"
    )
    common.add_argument("--algorithm", choices=ALGORITHMS, help="default: HS256")
    parser = Parser(description="Make and read the proxy's tokens.", parents=[common])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    adder = commands.add_parser("add", parents=[common], help="make a token for a team")
    adder.add_argument("team", type=parse_name)
    adder.add_argument("--token-id", type=parse_name, metavar="NAME", help="default: random")
    adder.add_argument(
        "--role", choices=ROLES, help="viewer: also dashboard and metrics; operator: every route"
    )
    adder.add_argument("--expires-in", type=parse_duration_s, metavar="30d", dest="expires_in_s")
    encoder = commands.add_parser("encode", parents=[common], help="make a token from any claims")
    encoder.add_argument("claims", help="a JSON object")
    encoder.add_argument("--expires-in", type=parse_duration_s, metavar="24h", dest="expires_in_s")
    decoder = commands.add_parser(
        "decode", parents=[common], help="check a token and print its claims"
    )
    decoder.add_argument("token")
    commands.add_parser("generate-secret", help=f"print {SECRET_BYTES} random bytes as hex")
    return parser


def run(arguments: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Returns the line to print. Raises ValueError or jwt.PyJWTError."""
    if arguments.command == "generate-secret":
        return secrets.token_hex(SECRET_BYTES)
    secret = getattr(arguments, "secret", None) or environ.get("JWT_SECRET") or kept_secret()
    algorithm = getattr(arguments, "algorithm", "HS256")
    if arguments.command == "add":
        return encode(team_claims(arguments), secret, algorithm, arguments.expires_in_s)
    if arguments.command == "encode":
        return encode(arguments.claims, secret, algorithm, arguments.expires_in_s)
    return decode(arguments.token, secret, algorithm)


def kept_secret() -> str:
    """Returns the secret of the server in this directory. Raises ValueError."""
    try:
        secret = SECRET_PATH.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        secret = ""
    if not secret:
        raise ValueError(
            "there is no secret that can be read; pass --secret, set JWT_SECRET, or run this in "
            f"the directory in which `make serve` wrote {SECRET_PATH}"
        )
    return secret


def main(argv: Sequence[str] | None = None) -> int:
    # PyJWT warns of a short secret, which the proxy reports itself.
    warnings.simplefilter("ignore")
    arguments = build_parser().parse_args(argv)
    try:
        print(run(arguments, os.environ), flush=True)  # noqa: TID251
    except (jwt.PyJWTError, OSError, TypeError, ValueError, RecursionError) as error:
        # ValueError may be a secret that is not UTF-8, RecursionError claims nested too deeply.
        if isinstance(error, OSError):  # or Python would print again, and a traceback, as it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
