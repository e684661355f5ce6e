"""Requests made of bytes: sound ones, and what becomes of them when they are broken at random.

Everything follows from one `random.Random`, so that a number names a request for ever.
"""

import json
import random
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lab.kit.servers import ROOT, TIMEOUT_S

SYSTEM = ROOT / "tests" / "data" / "optimizer" / "systems" / "s00_documented.json"
TEXT: dict[str, Any] = {"text": "hello", "max_tokens": 4, "temperature": "0.7"}
PROMPT: dict[str, Any] = {"model": "hearth-tiny", "prompt": ["a", "b"], "max_tokens": 4, "n": 2}
CHAT: dict[str, Any] = {
    "model": "hearth-tiny",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    "max_tokens": 4,
    "stream": True,
    "stop": ["x"],
    "logit_bias": {"5": 1.5},
    "structured_outputs": {"json": {"type": "object", "properties": {"a": {"type": "string"}}}},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
RESPONSE: dict[str, Any] = {
    "model": "hearth-tiny",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
    "max_output_tokens": 4,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
}
MESSAGE: dict[str, Any] = {
    "model": "hearth-tiny",
    "max_tokens": 4,
    "system": [{"type": "text", "text": "a"}],
    "messages": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "a", "signature": ""},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]},
    ],
    "tools": [{"name": "f", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto"},
    "stop_sequences": ["x"],
    "stream": True,
}  # fmt: skip
SEARCH: dict[str, Any] = {"number_of_nodes": 2, "max_weightings": [1.0, 1.0], "num_layers": 8}
MEASURED: dict[str, Any] = {"weights": [0.5, 0.5], "performance_metric": 1.0}
SMALL_BODIES: dict[str, dict[str, Any]] = {  # what is read of each, by the beginning of a path
    "/inference": TEXT,
    "/predictions": TEXT,
    "/chat": TEXT,
    "/v1/completions": PROMPT,
    "/v1/chat": CHAT,
    "/v1/responses": RESPONSE,
    "/v1/messages": MESSAGE,
    "/tokenize": {"messages": CHAT["messages"]},
    "/v1/tokenize": {"prompt": "a", "add_special_tokens": True},
    "/detokenize": {"tokens": [1, 2]},
    "/weights_gen": {"session_id": "s", "seed": 1, "count": 2, **SEARCH},
    "/weights_log": {"number_of_nodes": 2, "weights": [0.5, 0.5]},
    "/weights_update_delete": {"session_id": "s"},
    "/weights_update": {"session_id": "s", **MEASURED, **SEARCH},
    "/weights/sessions/{session_id}/partition": {
        "num_layers": 8,
        "min_layers": 1,
        "weights": [0.5, 0.5],
    },
    "/weights": {"observations": [MEASURED], **SEARCH},
}
READ_ELSEWHERE = (  # as /v1/messages and /inference read it
    "/v1/messages/count_tokens", "/v1/responses/input_tokens",
    "/inference/{model}", "/predictions/{model}", "/chat/{model}",
)  # fmt: skip
MARK = "the place of a nasty value"
NASTY_VALUES: tuple[bytes, ...] = (
    b"null", b"true", b"[]", b"{}", b'""', b"-1", b"0", b"1e400", b"-1e400", b"NaN", b"Infinity",
    b"9" * 400, b"9" * 5000, b"1." + b"0" * 400, b"1e-400", rb'"\ud800"', rb'"\udfff\ud800"',
    rb'"\u0000"', b'"\xff"', b'"' + b"x" * 5000 + b'"', b"[" * 130 + b"]" * 130,
    b"[" * 3000 + b"]" * 3000, b'{"a":' * 130 + b"1" + b"}" * 130, b"[-1]", b"[[]]", b"[null]",
    b'{"$ref": "#"}', b'{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}',
    b'"(a{1000}){1000}"', b"1" * 19, b"-" + b"9" * 19, b"2147483648",
)  # fmt: skip
NASTY_BYTES = (b"\0", b"\r\n", b"\\u", b"\xf0\x9f", b"\xef\xbb\xbf", b"{", b"]", b'"', b",", b":")
TYPES = (
    *["application/json"] * 40,
    "application/json; charset=utf-16",
    "application/json; charset=nonsense",
    "application/vnd.api+json",
    "text/plain",
    "multipart/form-data; boundary=x",
    "application/x-www-form-urlencoded",
    "",
    ";;;",
    "application/json\x7f",
)
PATH_VALUES = (*["hearth-tiny", "falcon40b", "s", "A100", "granite_13b/A100"] * 5, "%00", "%ff",
               "%2e%2e", "..%2f..%2fetc", "a" * 2000, "%ud800", "%ed%a0%80", "'\"<>", "é",
               "a%2Fb", "+")  # fmt: skip
QUERIES = ("", "", "?limit=-1", "?offset=%ff&limit=x", "?format=png", "?" + "a=1&" * 300, "?%")
HEAD = (
    "{verb} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    "X-Forwarded-For: 192.0.2.1\r\n"  # a remote caller: /drain must refuse it
    "{headers}Content-Type: {type}\r\nContent-Length: {length}\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Route:
    verb: str
    path: str  # as in /openapi.json


def routes_of(document: dict[str, Any]) -> list[Route]:
    """Every verb of every path, those that are not described too; the more so with a body."""
    routes = []
    for path, operations in document["paths"].items():
        routes += [Route(verb, path) for verb in ("GET", "PUT", "DELETE", "HEAD")]
        for verb, operation in operations.items():
            routes += [Route(verb.upper(), path)] * (40 if "requestBody" in operation else 2)
    return routes


def broken_one_by_one(routes: Sequence[Route], headers: str, every: int) -> Iterator[bytes]:
    """One of `every` nasty values, by turns, in every place of every route's sound body, where that
    is a small one and no other route reads it."""
    for route in dict.fromkeys(routes):
        if route.path in READ_ELSEWHERE:
            continue
        body = _small_body(route)
        num_places = len(list(_places(body))) if route.verb == "POST" else 0
        for number in range(num_places):
            broken = json.loads(json.dumps(body))
            holder, key = list(_places(broken))[number]
            holder[key] = MARK
            for value in NASTY_VALUES[number % every :: every]:
                yield _request(route, PATH_VALUES[0], headers, _with_values(broken, [value]))


def broken_at_random(routes: Sequence[Route], headers: str, dice: random.Random) -> bytes:
    """A request of one of the routes, whole as HTTP goes. `headers`: lines, each with its end."""
    route = dice.choice(routes)
    headers += dice.choice([*[""] * 20, "Content-Encoding: deflate\r\n"])
    body = _broken(_sound_body(route, dice), dice)
    request = _request(route, dice.choice(PATH_VALUES), headers, body, dice.choice(TYPES))
    return request.replace(b" HTTP/1.1", dice.choice(QUERIES).encode() + b" HTTP/1.1", 1)


def broken_head(headers: str, dice: random.Random) -> bytes:
    """A sound request whose head is broken anywhere, so that it may not be a request at all."""
    body = json.dumps(TEXT).encode()
    head = HEAD.format(
        verb="POST", path="/inference", headers=headers, type=TYPES[0], length=len(body)
    )
    return _mutated(head.encode(), dice) + body


def broken_chunks(routes: Sequence[Route], headers: str, dice: random.Random) -> bytes:
    """A sound request whose body comes in chunks, and these are broken anywhere."""
    route = dice.choice([route for route in routes if route.verb == "POST"])
    body = json.dumps(_sound_body(route, dice)).encode()
    size = dice.randrange(1, len(body) + 1)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    head, _, _ = _request(route, PATH_VALUES[0], headers, b"").rpartition(b"Content-Length")
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + _mutated(chunks, dice)


def exchange(port: int, request: bytes, ends: bool) -> bytes:
    """What comes back until the server closes the connection. Raises TimeoutError when nothing
    does in time. `ends`: say that no more will be sent, where it is not known to be a request."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as client:
        answer = b""
        with suppress(ConnectionError):  # a server need not read what it refuses
            client.sendall(request)
            if ends:
                client.shutdown(socket.SHUT_WR)
            while piece := client.recv(65536):
                answer += piece
        return answer


def _request(
    route: Route, path_value: str, headers: str, body: bytes, content_type: str = TYPES[0]
) -> bytes:
    path = re.sub(r"\{\w+\}", lambda _: path_value, route.path)
    head = HEAD.format(
        verb=route.verb, path=path, headers=headers, type=content_type, length=len(body)
    )
    return head.encode() + body


def _small_body(route: Route) -> Any:
    return next((body for path, body in SMALL_BODIES.items() if route.path.startswith(path)), None)


def _sound_body(route: Route, dice: random.Random) -> Any:
    system = json.loads(SYSTEM.read_text())["input"]
    if route.path in ("/whatif", "/optimizeOne", "/state", "/size", "/analyze"):
        return system
    parts = list(system["system"].values())
    return _small_body(route) or dice.choice([*SMALL_BODIES.values(), *parts])


def _broken(body: Any, dice: random.Random) -> bytes:
    how = dice.randrange(10)
    if how == 0:
        return dice.randbytes(dice.randrange(200))
    if how < 3:
        return _mutated(json.dumps(body).encode(), dice)
    return _with_nasty_values(body, dice)


def _with_nasty_values(body: Any, dice: random.Random) -> bytes:
    """One or two of its values replaced, at any depth, or a further one added."""
    broken = json.loads(json.dumps(body))
    for _ in range(dice.choice((1, 1, 1, 2))):
        holder, key = dice.choice([({}, "unused"), *_places(broken)])
        holder[key] = MARK
    if dice.random() < 0.1 and isinstance(broken, dict):
        broken["x"] = MARK
    values = [dice.choice(NASTY_VALUES) for _ in range(3)]
    return _with_values(broken, values)


def _with_values(marked: Any, values: Sequence[bytes]) -> bytes:
    """The JSON text of it with the values, which may be none of JSON's, in the marked places."""
    first, *others = json.dumps(marked).encode().split(json.dumps(MARK).encode())
    return first + b"".join(value + part for value, part in zip(values, others, strict=False))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(holder, key) of every value inside."""
    keys = (
        list(value)
        if isinstance(value, dict)
        else range(len(value) if isinstance(value, list) else 0)
    )
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _mutated(data: bytes, dice: random.Random) -> bytes:
    for _ in range(dice.randint(1, 4)):
        at, length = dice.randrange(len(data) + 1), dice.randrange(1, 9)
        data = dice.choice(
            (
                data[:at] + dice.randbytes(length) + data[at:],
                data[:at] + dice.randbytes(1) + data[at + 1 :],
                data[:at] + data[at + length :],
                data[:at] + dice.choice(NASTY_BYTES) + data[at:],
                data[: at + length] + data[at:],
                data[:at],
            )
        )
    return data
