"""Asks a server, before the first row, for its models and how many requests it serves at once."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import requests

from benchmarking.errors import TargetUnusable
from benchmarking.load.answers import error_text
from benchmarking.load.targets import Body, Endpoint, Prompt
from common.fetch import OK, FetchBounds, Fetched, FetchFailed, ask

BOUNDS = FetchBounds(connect_s=5.0, read_s=10.0, max_bytes=4 * 2**20)
MAX_NAMED = 10
NO_SUCH_ROUTE = (404, 405, 501)
BODY_REFUSED = (400, 422)
OPTIONAL = frozenset({"ignore_eos", "stream_options"})  # fields that not every server knows
OLD_LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"
PROBE, PROBE_TOKENS = Prompt("probe", "Say hello.", 1), 16
PROBE_TIMEOUT_S = 120.0  # the model may have to be loaded
MAX_TRIES = 4  # each try after the first leaves out or renames one or more of three fields
MAX_REFUSAL_BYTES = 65_536
REMEDIES = {401: "set BENCHMARK_API_KEY", 403: "set another BENCHMARK_API_KEY"}


def only_model(target: Endpoint) -> str:
    """Returns the model that the server lists first. Raises TargetUnusable if it lists none."""
    unserved(target, ())
    served = _listed(_get(target, target.route("/models")))
    if not served:
        url = target.route("/models")
        usual_url = target.beside("/v1")
        is_usual = url == target.beside("/v1/models")
        elsewhere = "" if is_usual else f"use {usual_url}, where most servers have it, or "
        raise TargetUnusable(f"{url} lists no model; {elsewhere}name it with --model")
    return served[0]


def unserved(target: Endpoint, models: Iterable[str]) -> dict[str, str]:
    """Returns the `models` that the server does not list, each with a message. A server that lists
    no models counts as serving all. Raises TargetUnusable if no server answers."""
    url = target.route("/models")
    try:
        answer = _get(target, url)
    except FetchFailed as error:
        reason = str(error).removeprefix(f"{url}: ")
        raise TargetUnusable(
            f"{url} does not answer ({reason}); start the server, or set BENCHMARK_API_BASE"
        ) from error
    if answer.status not in (OK, *NO_SUCH_ROUTE):
        remedy = REMEDIES.get(answer.status, "wait until the server is ready")
        message = target.without_secrets(error_text(answer.content, answer.location))
        raise TargetUnusable(f"{url} answered {answer.status} ({message}); {remedy}")
    served = _listed(answer)
    names = ", ".join(served[:MAX_NAMED]) + (", ..." if len(served) > MAX_NAMED else "")
    return {
        model: f"{url} answered 200 and serves {names}, not {model}; correct the name of the model"
        for model in dict.fromkeys(models)
        if served and model not in served
    }


def user_rows(target: Endpoint) -> int | None:
    """Returns the number of user rows that Hearth's `/ready` reports; None for other servers."""
    try:
        num_rows = _get(target, target.beside("/ready")).json()["user_rows"]
    except (FetchFailed, ValueError, LookupError, TypeError, RecursionError):
        return None
    return num_rows if isinstance(num_rows, int) and num_rows > 0 else None


def _listed(answer: Fetched) -> list[str]:
    try:
        return [str(card["id"]) for card in answer.json()["data"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []


def agreed(target: Endpoint, model: str, notify: Callable[[str], None]) -> Endpoint:
    """Returns the target with the body fields that it refuses left out or renamed.

    It sends one short request, and sends it again without the optional fields that the refusal
    names, or without all of them if it names none. If the server still refuses, the rows record it.
    """
    if target.kind != "openai":
        return target
    found = target
    for _ in range(MAX_TRIES):
        body = found.body(model, PROBE, PROBE_TOKENS)
        try:
            refusal = _refusal(found, model, body)
        except requests.RequestException:
            return target
        if refusal is None:
            if found != target:
                notify(f"the server refuses some fields of requests: {found.agreement}")
            return found
        optional = OPTIONAL.intersection(body)
        if NEW_LIMIT in refusal and OLD_LIMIT in body:
            found = replace(found, renamed=((OLD_LIMIT, NEW_LIMIT),))
        elif optional:
            named = {name for name in optional if name in refusal}
            found = replace(found, left_out=found.left_out | (named or optional))
        else:
            return target
    return target


def _refusal(target: Endpoint, model: str, body: Body) -> str | None:
    """Returns the answer of a server that refuses a body; None if it accepts the body."""
    with requests.Session() as session:
        session.trust_env = False  # as for `ServerTokenizer`
        answer = session.post(
            target.completions(model),
            json=body,
            headers=target.headers,
            timeout=PROBE_TIMEOUT_S,
            allow_redirects=False,
            stream=True,  # a server that accepts the body need not finish its answer
        )
        if answer.status_code not in BODY_REFUSED:
            return None
        refusal: bytes = next(answer.iter_content(MAX_REFUSAL_BYTES), b"")
    return refusal.decode(errors="replace")


def _get(target: Endpoint, url: str) -> Fetched:
    return ask(url, BOUNDS, headers=target.headers)
