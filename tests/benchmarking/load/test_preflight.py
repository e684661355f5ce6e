"""What is asked of a server before the first row, and what is made of strange answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread

import pytest
from pydantic import SecretStr
from werkzeug import Request, Response
from werkzeug.serving import make_server

from benchmarking.errors import TargetUnusable
from benchmarking.load.preflight import only_model, unserved, user_rows
from benchmarking.load.targets import Target


@contextmanager
def answering(status: int, body: str) -> Iterator[Target]:
    """A server that gives one answer to everything."""

    @Request.application
    def app(request: Request) -> Response:
        assert request.headers["Authorization"] == "Bearer key"
        return Response(body, status, content_type="application/json")

    server = make_server("127.0.0.1", 0, app)
    thread = Thread(target=server.serve_forever, name="answering")
    thread.start()
    try:
        yield Target("openai", f"http://127.0.0.1:{server.port}/v1", SecretStr("key"))
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
