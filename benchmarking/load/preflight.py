"""A server's own account before the first row: its models, and how many requests at once."""

from collections.abc import Iterable

import requests

from benchmarking.errors import TargetUnusable
from benchmarking.load.answers import error_text
from benchmarking.load.targets import Target

TIMEOUT_S = 10.0
MAX_NAMED = 10
NO_SUCH_ROUTE = (404, 405, 501)
REMEDIES = {401: "set BENCHMARK_API_KEY", 403: "set another BENCHMARK_API_KEY"}


def only_model(target: Target) -> str:
    """Returns the model that the server lists first. Raises TargetUnusable where it lists none."""
    unserved(target, ())
    served = _listed(_get(target, target.route("/models")))
    if not served:
        url = target.route("/models")
        is_versioned = url == f"{target.root}/v1/models"
        elsewhere = "" if is_versioned else f"use {target.root}/v1, where most servers have it, or "
        raise TargetUnusable(f"{url} lists no model; {elsewhere}name it with --model")
    return served[0]


def unserved(target: Target, models: Iterable[str]) -> dict[str, str]:
    """Those of `models` that the server does not list, and what to say of each.

    A server that lists none is taken to serve all. Raises TargetUnusable where nobody answers.
    """
    url = target.route("/models")
    try:
        answer = _get(target, url)
    except requests.RequestException as error:
        reason = str(error).rpartition(": ")[2].rstrip("')\"") or type(error).__name__
        raise TargetUnusable(
            f"{url} does not answer ({reason}); start the server, or set BENCHMARK_API_BASE"
        ) from error
    if answer.status_code not in (200, *NO_SUCH_ROUTE):
        remedy = REMEDIES.get(answer.status_code, "wait until the server is ready")
        raise TargetUnusable(
            f"{url} answered {answer.status_code} ({error_text(answer.content)}); {remedy}"
        )
    served = _listed(answer)
    names = ", ".join(served[:MAX_NAMED]) + (", ..." if len(served) > MAX_NAMED else "")
    return {
        model: f"{url} answered 200 and serves {names}, not {model}; correct the name of the model"
        for model in dict.fromkeys(models)
        if served and model not in served
    }


def user_rows(target: Target) -> int | None:
    """Returns the number of user rows by Hearth's `/ready`; None for other servers."""
    try:
        said = _get(target, f"{target.root}/ready").json()["user_rows"]
    except (requests.RequestException, ValueError, LookupError, TypeError):
        return None
    return said if isinstance(said, int) and said > 0 else None


def _listed(answer: requests.Response) -> list[str]:
    try:
        return [str(card["id"]) for card in answer.json()["data"]]
    except (ValueError, LookupError, TypeError):
        return []


def _get(target: Target, url: str) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False  # as the tokenizer asks
        return session.get(url, headers=target.headers, timeout=TIMEOUT_S)
