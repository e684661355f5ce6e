"""Every row of the error table, and random bodies, against the application in this process."""

import gzip
import json
import os
import tracemalloc
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import jwt
import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from common import __version__
from inference_api._mock_inference_api_server import create_test_server
from inference_api.apis import embeddings
from inference_api.apis.native.body import NativeBody
from inference_api.apis.openai.bodies import ChatBody
from inference_api.apis.openai.field_kinds import UNSERVED
from inference_api.core.generations import TextGeneration
from inference_api.core.input_queue import InputQueue
from inference_api.errors import RequestTooLarge
from inference_api.inference_api_server import create_server, server_of
from inference_api.settings import Settings
from inference_api.web.entries import ONE_TEXT
from inference_api.web.whole_body import decompressed
from tests.inference_api.in_process import started
from tests.recorded_turns import recorded_turns

RANDOM_BODIES = int(os.environ.get("RANDOM_BODIES", "250"))  # `make fuzz` has more


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    app = create_test_server(
        Settings(mock_tokens_per_second=1e6, max_seq_len=32, max_content_length_bytes=2048)
    )
    with started(app) as client:
        yield client


def assert_error(response: Any, status: int, message: str) -> None:
    assert response.status_code == status
    assert response.content_type == "application/json"
    body = response.get_json()
    assert body["status_code"] == status
    assert body["message"].startswith(message)
    assert body["error"]["message"] == body["message"]
    assert set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "Malformed JSON request body."),
        ("", "Malformed JSON request body."),
        ("[1]", "Malformed JSON request body."),
        ('{"top_k": 3.7, "text": "a"}', "Parameter: top_k is type=number, expected integer"),
        ("{}", "required 'text' parameter is either empty or not provided"),
        ('{"text": ""}', "required 'text' parameter is either empty or not provided"),
        ('{"text": "a", "top_p": 2}', "Parameter: top_p=2.0 is outside bounds, 0.01 <= top_p"),
    ],
)
def test_bad_bodies(client: FlaskClient, body: str, message: str) -> None:
    assert_error(
        client.post("/inference", data=body, content_type="application/json"), 400, message
    )


def test_what_is_not_declared_json_is_refused(client: FlaskClient) -> None:
    response = client.post("/inference", data='{"text": "a"}', content_type="text/plain")
    assert_error(response, 400, "Request was not JSON")
    assert response.get_json()["message"] == "Request was not JSON"


@given(
    path=st.sampled_from(["/v1/chat/completions", "/v1/responses", "/openai/v1/embeddings"]),
    declared=st.sampled_from(["application/x-www-form-urlencoded", "", "text/plain", "json"]),
)
def test_a_body_that_is_not_declared_json_is_told_the_header(
    client: FlaskClient, path: str, declared: str
) -> None:
    response = client.post(path, data='{"input": "a"}', content_type=declared or None)
    remedy = f"its Content-Type is '{declared}'; send application/json."
    assert_error(response, 400, f"Request was not JSON: {remedy}")


def test_a_wrong_method_is_told_the_right_ones(client: FlaskClient) -> None:
    rules = [rule for rule in client.application.url_map.iter_rules() if not rule.arguments]
    for rule in rules:
        allowed = {m for each in rules if each.rule == rule.rule for m in each.methods or ()}
        response = client.delete(rule.rule)
        if "DELETE" not in allowed:
            methods, told = ", ".join(sorted(allowed)), response.get_json()["error"]["message"]
            assert told == f"DELETE {rule.rule}: Method Not Allowed; send {methods}"
            assert (response.status_code, response.headers["Allow"]) == (405, methods)


def send_encoded(client: FlaskClient, data: bytes, encoding: str = "gzip") -> Any:
    headers = {"Content-Encoding": encoding}
    return client.post("/inference", data=data, content_type="application/json", headers=headers)


compressed = partial(gzip.compress, mtime=0)  # workers of a test run collect the same
HELLO = b'{"text": "hello"}'


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", " GZIP"])
def test_body_may_be_compressed(client: FlaskClient, encoding: str) -> None:
    assert send_encoded(client, compressed(HELLO), encoding).text == "hello"
    assert send_encoded(client, HELLO, "identity").text == "hello"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (HELLO, "The body is declared as gzip and is not (Error -3"),
        (b"", "The body's gzip is cut short; send all of it."),
        (zlib.compress(HELLO), "The body is declared as gzip and is not (Error -3"),
        (compressed(HELLO)[:-1], "The body's gzip is cut short; send all of it."),
        (compressed(HELLO)[:-8] + bytes(8), "The body is declared as gzip and is not (Error -3"),
        (compressed(HELLO) * 2, "Something follows the body's gzip; send one member, and only"),
        (compressed(HELLO) + b" ", "Something follows the body's gzip; send one member, and"),
        (compressed(b"{"), "Malformed JSON request body."),
    ],
)
def test_compressed_body_that_is_damaged_is_refused(
    client: FlaskClient, data: bytes, message: str
) -> None:
    assert_error(send_encoded(client, data), 400, message)


@pytest.mark.parametrize("encoding", ["br", "deflate", "zstd", "gzip, gzip", "identity, gzip", "x"])
def test_other_encodings_are_refused_with_a_remedy(client: FlaskClient, encoding: str) -> None:
    response = send_encoded(client, compressed(HELLO), encoding)
    assert_error(response, 415, f"The body is declared as Content-Encoding: '{encoding}'; send gz")
    assert response.headers["Accept-Encoding"] == "gzip"


@pytest.mark.parametrize("path", ["/optimizeOne", "/weights_update"])
def test_body_for_the_other_services_is_decompressed_in_turn(
    client: FlaskClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = recorded_turns(monkeypatch)

    def answer(data: bytes, **headers: str) -> tuple[int, bytes]:
        response = client.post(path, data=data, headers=headers, content_type="application/json")
        return response.status_code, response.data

    plain = answer(b"{}")
    assert turns == []
    encoded = {"Content-Encoding": "gzip"}
    assert answer(compressed(b"{}"), **encoded) == plain
    assert turns == ["begin", "end"]
    status, _ = answer(compressed(b" " * 2049), **encoded)
    assert status == 413


ASKED = {"prompt": "Hi", "max_tokens": 2, "logprobs": 1}
TALK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/inference", {"text": "Hi"}),
        ("/v1/completions", ASKED | {"prompt_logprobs": 1}),
        ("/v1/completions", ASKED | {"echo": True, "stream": True}),
        ("/v1/chat/completions", TALK | {"logprobs": True, "prompt_logprobs": 1}),
        ("/v1/messages", TALK | {"stream": True}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/embeddings", {"input": ["Hi", "there"]}),
    ],
)
def test_client_that_leaves_before_the_first_token_is_no_fault(
    client: FlaskClient, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave_and_wait(generation: TextGeneration) -> None:
        generation.abandon()
        wait(generation)

    wait = TextGeneration.wait_until_started
    monkeypatch.setattr(TextGeneration, "wait_until_started", leave_and_wait)
    monkeypatch.setattr(InputQueue, "put", lambda *given: None)  # no token comes
    monkeypatch.setattr(embeddings, "check_dimensions", lambda *given: None)  # a mock has none
    response = client.post(path, json={"model": "hearth-tiny"} | body)
    assert response.status_code == 200, response.text


def test_bomb_is_stopped_at_the_limit_of_bodies() -> None:
    bomb = compressed(bytes(2**22))
    tracemalloc.start()
    with pytest.raises(RequestTooLarge, match="decompressed body exceeds 65536 bytes"):
        decompressed(bomb, 65536)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 4 * 65536  # the bomb has 64 times the limit


def test_body_may_decompress_to_just_the_limit(client: FlaskClient) -> None:
    fits = b'{"text": "hello"' + b" " * 2031 + b"}"
    assert send_encoded(client, compressed(fits)).text == "hello"
    response = send_encoded(client, compressed(fits + b" "))
    assert_error(response, 413, "The request decompressed body exceeds 2048 bytes")


def test_prompt_beyond_the_context_names_both_numbers(client: FlaskClient) -> None:
    response = client.post("/inference", json={"text": "x" * 32})
    assert_error(response, 400, "This model's maximum context length is 32 tokens")
    assert response.get_json()["error"]["code"] == "context_length_exceeded"


def test_prompt_just_within_the_context_gets_one_token(client: FlaskClient) -> None:
    assert client.post("/inference", json={"text": "x" * 31}).text == "x"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/inference", {"text": "four"}),
        ("/inference/hearth-tiny", {"text": "four"}),
        ("/v1/completions", {"model": "hearth-tiny", "prompt": ["four"], "stream": True, "n": 2}),
    ],
)
def test_streams_say_how_many_tokens_their_prompts_have(
    client: FlaskClient, path: str, body: dict[str, Any]
) -> None:
    response = client.post(path, json=body | {"max_tokens": 1})
    assert response.status_code == 200
    assert response.headers["X-Prompt-Tokens"] == "4"


def test_large_body_is_refused(client: FlaskClient) -> None:
    response = client.post("/inference", json={"text": "x" * 3000})
    assert_error(response, 413, "The request body exceeds 2048 bytes; send less or raise MAX_CONT")


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/v1/v1/chat/completions"])
def test_an_address_without_v1_is_told_its_remedy(client: FlaskClient, path: str) -> None:
    said = client.post(path, json={"messages": []}).get_json()["message"]
    assert said.endswith((" OpenAI's routes begin with /v1.", " of OpenAI begin with /v1"))


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/inference", "/v1/models"]
)
def test_a_slash_at_the_end_changes_no_route(client: FlaskClient, path: str) -> None:
    for ask in (client.get, partial(client.post, json={})):
        plain, with_slash = ask(path), ask(f"{path}/")
        assert (with_slash.status_code, with_slash.status_code == 404) == (plain.status_code, False)


@pytest.mark.parametrize(("type_", "field"), ONE_TEXT.items())
def test_refusals_and_summaries_of_before_are_text_in_either_api(
    client: FlaskClient, type_: str, field: str
) -> None:
    question = {"role": "user", "content": "a"}
    for route, turns, fields in (
        ("chat/completions", "messages", {}),
        ("responses", "input", {}),
        ("messages", "messages", {"max_tokens": 1}),
    ):
        answers = [
            client.post(
                f"/v1/{route}",
                json={turns: [question, {"role": "assistant", "content": content}, question]}
                | fields,
            ).get_json()["usage"]
            for content in ("No.", [{"type": type_, field: "No."}])
        ]
        counted = [each.get("prompt_tokens") or each["input_tokens"] for each in answers]
        assert counted[0] == counted[1] > 0


def test_unknown_model_path_and_verb(client: FlaskClient) -> None:
    for route in ("inference", "predictions", "chat"):
        assert_error(client.post(f"/{route}/other", json={"text": "a"}), 404, "Model 'other'")
    assert_error(client.get("/nowhere"), 404, "GET /nowhere")
    response = client.get("/inference")
    assert_error(response, 405, "GET /inference")
    assert "POST" in response.headers["Allow"]


def test_requests_before_the_model_is_loaded_are_told_to_come_back() -> None:
    client = create_server(Settings()).test_client()
    response = client.post("/inference", json={"text": "a"})
    assert_error(response, 503, "The model is still loading")
    assert int(response.headers["Retry-After"]) >= 1
    assert client.get("/ready").get_json()["status"] == "loading"
    assert client.get("/ready").status_code == 503
    assert client.get("/health").text == "OK"


def test_unexpected_errors_are_json_without_details(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(text: str) -> list[int]:
        raise RuntimeError("a secret detail")

    served = server_of(client.application).backend.served["hearth-tiny"]
    monkeypatch.setattr(served.tokenizer, "encode", fail)
    response = client.post("/inference", json={"text": "a"})
    assert_error(response, 500, "Internal error")
    assert "secret" not in response.text


def test_probes_need_no_token_and_the_tokenizer_does() -> None:
    secret = SecretStr("long enough to be a secret of HS256")
    client = create_server(Settings(jwt_secret=secret)).test_client()
    assert client.get("/ping").text == client.post("/ping").text == "OK"
    assert client.get("/version").get_json() == {"version": __version__}
    assert_error(client.get("/tokenizer_info"), 401, "A valid bearer token")
    assert_error(client.post("/tokenize", json={"prompt": "a"}), 401, "A valid bearer token")


@pytest.mark.parametrize(
    ("claims", "is_good"),
    [
        ('{"iat": 4000000000, "sub": 7, "jti": 7}', True),
        ('{"exp": 1}', False),
        ('{"nbf": 4000000000}', False),
        ('{"exp": 1e400}', False),
        ("[" * 3000 + "]" * 3000, False),
    ],
    ids=["numbers", "expired", "early", "infinite", "deep"],
)
def test_token_is_judged_by_the_claims_that_decide(claims: str, is_good: bool) -> None:
    secret = "long enough to be a secret of HS256"
    client = create_server(Settings(jwt_secret=SecretStr(secret))).test_client()
    token = jwt.api_jws.encode(claims.encode(), secret)
    response = client.get("/tokenizer_info", headers={"Authorization": f"Bearer {token}"})
    assert response.status_code == (503 if is_good else 401)  # no model is loaded


flat_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
# Not st.recursive, which takes twice as long to draw.
json_values: st.SearchStrategy[Any] = st.deferred(
    lambda: (
        flat_values
        | flat_values
        | st.lists(json_values, max_size=3)
        | st.dictionaries(st.text(max_size=5), json_values, max_size=3)
    )
)
names = st.sampled_from(list(NativeBody.model_fields))
bodies = st.one_of(
    st.dictionaries(names | st.text(max_size=5), json_values, max_size=6).map(json.dumps),
    st.dictionaries(names, json_values, max_size=4).map(lambda b: json.dumps({"text": "a"} | b)),
    json_values.map(json.dumps),
    st.text(max_size=40),
    st.binary(max_size=40),
)


@settings(
    max_examples=RANDOM_BODIES,
    suppress_health_check=list(HealthCheck),
)
@given(bodies, st.sampled_from(["/inference", "/predictions/falcon40b", "/chat/falcon40b"]))
def test_no_body_is_answered_with_500(client: FlaskClient, body: str | bytes, route: str) -> None:
    data = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
    response = client.post(route, data=data, content_type="application/json")
    assert response.status_code in (200, 400, 413)
    assert response.data is not None
    response.close()


openai_names = st.sampled_from([*ChatBody.model_fields, *UNSERVED, "prompt"])
openai_values = json_values | st.lists(st.integers(-1, 300), max_size=4)
openai_bodies = st.dictionaries(openai_names, openai_values, max_size=3).map(
    lambda body: json.dumps({"model": "hearth-tiny", "prompt": "a", "max_tokens": 3} | body)
)


@settings(max_examples=2 * RANDOM_BODIES // 3, suppress_health_check=list(HealthCheck))
@given(openai_bodies, st.sampled_from(["completions", "chat/completions", "tokenize"]))
def test_no_body_of_an_openai_client_is_answered_with_500(
    client: FlaskClient, body: str, route: str
) -> None:
    with client.post(f"/v1/{route}", data=body, content_type="application/json") as response:
        assert response.status_code in (200, 400, 404, 413)
        assert response.data is not None


def test_optimizer_is_served_by_the_same_application(client: FlaskClient) -> None:
    response = client.post("/optimizeOne", json={"system": {}})
    assert response.status_code == 200
    assert response.get_json()["allocations"] == {}
