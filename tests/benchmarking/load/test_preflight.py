"""What is asked of a server before the first row, and what is made of strange answers."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import repeat
from threading import Thread

import pytest
from pydantic import SecretStr
from werkzeug import Request, Response
from werkzeug.serving import make_server

from benchmarking.errors import TargetUnusable
from benchmarking.load.preflight import agreed, only_model, unserved, user_rows
from benchmarking.load.targets import Endpoint, Prompt
from benchmarking.load.tokenizers import ServerTokenizer


@contextmanager
def answering(status: int, body: str) -> Iterator[Endpoint]:
    """A server that gives one answer to everything."""
    with serving(lambda request: Response(body, status, content_type="application/json")) as target:
        yield target


@contextmanager
def serving(answer: Callable[[Request], Response]) -> Iterator[Endpoint]:
    @Request.application
    def app(request: Request) -> Response:
        assert request.headers["Authorization"] == "Bearer key"
        return answer(request)

    server = make_server("127.0.0.1", 0, app)
    thread = Thread(target=server.serve_forever, name="answering")
    thread.start()
    try:
        yield Endpoint("openai", f"http://127.0.0.1:{server.port}/v1", SecretStr("key"))
    finally:
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, ""), (405, "{}"), (200, "no json"), (200, '{"data": 3}'), (200, '{"data": []}')],
)
def test_a_server_that_lists_no_models_is_taken_to_serve_all(status: int, body: str) -> None:
    with answering(status, body) as target:
        assert unserved(target, ["m"]) == {}


@pytest.mark.parametrize(
    ("status", "remedy"), [(401, "set BENCHMARK_API_KEY"), (503, "wait until the server is ready")]
)
def test_a_refusal_is_named_with_its_remedy(status: int, remedy: str) -> None:
    with answering(status, '{"error": {"message": "no"}}') as target:
        with pytest.raises(TargetUnusable) as error:
            unserved(target, ["m"])
        assert str(error.value) == f"{target.base}/models answered {status} (no); {remedy}"


@pytest.mark.parametrize("ask", [unserved, lambda target, _: ServerTokenizer(target, "m")])
@pytest.mark.parametrize("piece", [b"[" * 2**16, b'{"data": [' + b" " * 2**16])
def test_an_endless_answer_is_left_where_it_is_too_long(
    ask: Callable[..., object], piece: bytes
) -> None:
    endless = Response(repeat(piece), content_type="application/json")
    with serving(lambda request: endless) as target, pytest.raises(TargetUnusable, match="more"):
        ask(target, ["m"])


@pytest.mark.parametrize("depth", [3000, 10**6])
def test_an_answer_of_any_depth_is_an_answer(depth: int) -> None:
    with answering(200, "[" * depth) as target:
        assert unserved(target, ["m"]) == {}
        assert user_rows(target) is None
        with pytest.raises(TargetUnusable, match="does not count tokens"):
            ServerTokenizer(target, "m")


def test_where_no_model_is_listed_the_usual_place_of_the_api_is_named() -> None:
    with answering(404, "") as target:
        with pytest.raises(TargetUnusable, match=r"/v1/models lists no model; name it with"):
            only_model(target)
        root = target.base.removesuffix("/v1")
        with pytest.raises(TargetUnusable, match=f"{root}/models lists no model; use {root}/v1,"):
            only_model(replace(target, base=root))


@pytest.mark.parametrize(
    ("body", "rows"),
    [('{"user_rows": 32}', 32), ('{"user_rows": null}', None), ("{}", None), ("ready", None)],
)
def test_user_rows_are_known_only_where_the_server_says_them(body: str, rows: int | None) -> None:
    with answering(503, body) as target:  # it may be draining
        assert user_rows(target) == rows
    assert user_rows(target) is None  # it has gone


@dataclass
class Picky:
    """A server that refuses fields, and names them as `refusal` does."""

    refused: tuple[str, ...]
    refusal: Callable[[str], str]
    bodies: list[dict[str, object]] = field(default_factory=list)

    def answer(self, request: Request) -> Response:
        self.bodies.append(json.loads(request.get_data()))
        wrong = next((name for name in self.refused if name in self.bodies[-1]), None)
        return Response(
            "data: [DONE]" if wrong is None else self.refusal(wrong), 200 if wrong is None else 400
        )


def named(name: str) -> str:
    return json.dumps({"detail": [{"type": "extra_forbidden", "loc": ["body", name]}]})


def of_openai(name: str) -> str:
    remedy = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
    return json.dumps({"error": {"message": f"Unsupported parameter: '{name}'.{remedy}"}})


def unnamed(name: str) -> str:
    return '{"error": {"message": "Bad request"}}'


@pytest.mark.parametrize(
    ("refused", "refusal", "agreement", "num_asked"),
    [
        ((), named, "", 1),
        (("ignore_eos",), named, "without ignore_eos", 2),
        (("stream_options",), named, "without stream_options", 2),
        (("ignore_eos", "stream_options"), named, "without ignore_eos, without stream_options", 3),
        (("ignore_eos",), unnamed, "without ignore_eos, without stream_options", 2),
        (("max_tokens",), of_openai, "with max_completion_tokens for max_tokens", 2),
        (
            ("max_tokens", "ignore_eos", "stream_options"),
            of_openai,
            "without ignore_eos, without stream_options, with max_completion_tokens for max_tokens",
            4,
        ),
        (("model",), named, "", 2),  # a refusal of something else is left to the rows
        (("max_tokens",), unnamed, "", 2),
    ],
)
def test_what_a_server_refuses_is_left_out_and_said(
    refused: tuple[str, ...], refusal: Callable[[str], str], agreement: str, num_asked: int
) -> None:
    picky, messages = Picky(refused, refusal), list[str]()
    with serving(picky.answer) as target:
        found = agreed(target, "m", messages.append)
    assert (found.agreement, len(picky.bodies)) == (agreement, num_asked)
    assert [line.rpartition(": ")[2] for line in messages] == ([agreement] if agreement else [])
    if agreement:
        assert str(found) == f"{target}, {agreement}"
        assert not set(refused) & set(picky.bodies[-1])
    else:
        assert found == target


def test_who_does_not_answer_is_asked_as_usual() -> None:
    with answering(200, "") as target:
        pass
    assert agreed(target, "m", print) == target


def test_a_query_goes_with_every_route() -> None:
    target = Endpoint("openai", "https://x.azure.com/openai/deployments/d?api-version=2024-06-01")
    head = target.request("m", Prompt("p", "text", 1), 1).split(b"\r\n")[0]
    query = "api-version=2024-06-01"
    assert head == f"POST /openai/deployments/d/chat/completions?{query} HTTP/1.1".encode()
    assert target.route("/models") == f"https://x.azure.com/openai/deployments/d/models?{query}"
    assert target.beside("/ready") == f"https://x.azure.com/openai/deployments/d/ready?{query}"
    assert target.address.port == 443


def test_no_redirect_takes_a_key_elsewhere() -> None:
    followed: list[str] = []

    def elsewhere(request: Request) -> Response:
        followed.append(request.path)
        return Response("{}")

    with serving(elsewhere) as other:
        moved = Response("", 307, {"Location": other.base})
        with serving(lambda request: moved) as target:
            target = replace(target, user_headers=(("api-key", SecretStr("also-secret")),))
            with pytest.raises(TargetUnusable, match=f"redirects to {other.base}"):
                unserved(target, ["m"])
            with pytest.raises(TargetUnusable):
                ServerTokenizer(target, "m")
            assert agreed(target, "m", print) == target
            assert user_rows(target) is None
    assert followed == []


def test_a_server_that_repeats_a_secret_does_not_have_it_said() -> None:
    with answering(401, '{"error": {"message": "also-secret is wrong"}}') as target:
        target = replace(target, user_headers=(("api-key", SecretStr("also-secret")),))
        with pytest.raises(TargetUnusable, match=r"\*\*\* is wrong"):
            unserved(target, ["m"])
    assert "also-secret" not in repr(target)


@pytest.mark.parametrize("kept", range(10, 60))
def test_no_part_of_a_secret_is_left_where_a_message_was_cut(kept: int) -> None:
    secret = "a-secret.of-some-length"
    target = Endpoint("openai", "http://x", user_headers=(("api-key", SecretStr(secret)),))
    message = f"wrong key: {secret} and again {secret}!"
    assert secret[:6] not in target.without_secrets(message[:kept])
