"""What the proxy reads from a request to route it."""

import asyncio
import gzip
import json
import random
from collections.abc import Callable
from unittest.mock import patch
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.clients import inbound
from proxy.clients.inbound import (
    BodyRoom,
    RequestBody,
    RoutingHints,
    parsed,
    read_hints,
    takes_row,
    target_fault,
)
from proxy.clients.request_head import RequestHead
from proxy.errors import BadRequest, ClientGone

LEAVES = [b"NaN", b"-Infinity", b"1e999", b"-0", b"0.1", b"01", b"-", b"9" * 5000, b"true", b"tru"]
LEAVES += [
    b'"a"',
    b'"\\ud800"',
    b'"\\ud83d\\ude00"',
    b'"\xc3\xa9"',
    b'"\xed\xa0\x80"',
    b'"\t"',
    b'"\\x"',
]
KEYS = st.sampled_from([b'"model"', b'"mode\\u006c"', b'"a"', b"a", b"'a'"])


def containers(parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Keys may come twice, and commas at the end."""
    joined = st.tuples(st.sampled_from([b",", b" , ", b"\x0b,"]), st.lists(parts, max_size=3))
    pairs = st.tuples(KEYS, parts).map(b":".join)
    objects = st.tuples(st.sampled_from([b"", b","]), st.lists(pairs, max_size=3))
    return joined.map(lambda each: b"[%b]" % each[0].join(each[1])) | objects.map(
        lambda each: b"{%b%b}" % (b",".join(each[1]), each[0])
    )


class NoSource:
    def set_reading(self, is_reading: bool) -> None: ...

    def invite_body(self) -> None: ...


def hints(
    target: str = "/v1/chat/completions", content_type: str = "application/json", **fields: object
) -> RoutingHints:
    return hints_of(json.dumps(fields).encode(), target, content_type)


def hints_of(
    data: bytes, target: str = "/v1/completions", content_type: str = "application/json"
) -> RoutingHints:
    head = RequestHead(
        "POST", target, {"content-length": str(len(data)), "content-type": content_type}
    )
    body = RequestBody(head, NoSource())
    if data:
        body.feed(data)
        body.end()
    asyncio.run(body.read_prefix(10_000_000))
    return read_hints(head, body)


class Connection:
    """Sends pieces to a body whenever that reads, one for each turn of the loop."""

    def __init__(self, pieces: list[bytes], room: BodyRoom) -> None:
        self.body = RequestBody(RequestHead("POST", "/", {"transfer-encoding": "chunked"}), self)
        self.pieces, self.room, self.num_sent = pieces, room, 0

    def set_reading(self, is_reading: bool) -> None:
        if is_reading:
            asyncio.get_running_loop().call_soon(self.send)

    def invite_body(self) -> None: ...

    def send(self) -> None:
        if self.pieces and not self.body.is_held_back:
            self.num_sent += len(self.pieces[0])
            self.body.feed(self.pieces.pop(0))
            self.set_reading(True)
        elif not self.pieces:
            self.body.end()

    async def read(self) -> bytes:
        self.set_reading(True)
        await self.body.read_prefix(10_000_000, room=self.room)
        return self.body.prefix

    async def rest(self) -> bytes:
        return b"".join([piece async for piece in self.body.rest(10_000_000)])


@given(
    st.lists(st.binary(min_size=1, max_size=9), max_size=12),
    st.integers(1, 20),
    st.integers(0, 60),
    st.integers(0, 80),
)
def test_long_body_is_whole_where_it_has_room_and_streamed_where_it_has_none(
    pieces: list[bytes], inspected: int, more: int, room_bytes: int
) -> None:
    whole, room, long = b"".join(pieces), BodyRoom(room_bytes), inspected + more

    async def read() -> None:
        body = (connection := Connection(pieces, room)).body
        prefix = await connection.read()
        has_room = len(whole) <= min(long, inspected + room_bytes)
        assert body.is_complete == (len(whole) <= inspected or has_room)
        assert (prefix == whole) if body.is_complete else len(prefix) <= long + 9
        assert room_bytes - room.num_free_bytes <= max(0, min(len(prefix), long) - inspected)
        for _ in range(30):  # meanwhile the request waits for a row, say
            await asyncio.sleep(0)
        assert connection.num_sent - len(prefix) <= inspected + 9
        assert prefix + await connection.rest() == whole
        for _ in range(2):
            body.release()
            assert (body.prefix, room.num_free_bytes) == (b"", room_bytes)

    with patch.multiple(inbound, INSPECTED_BYTES=inspected, LONG_BYTES=long):
        asyncio.run(asyncio.wait_for(read(), 60))


@pytest.mark.parametrize("at_once", [1, 3])
def test_room_of_a_body_whose_client_leaves_is_anothers(at_once: int) -> None:
    room = BodyRoom(at_once)

    async def leave() -> None:
        reader = asyncio.create_task((connection := Connection([b"xx"] * at_once, room)).read())
        while connection.pieces:
            await asyncio.sleep(0)
        connection.body.fail(ClientGone("left"))
        with pytest.raises(ClientGone):
            await reader
        connection.body.release()
        assert room.num_free_bytes == at_once

    with patch.multiple(inbound, INSPECTED_BYTES=1, LONG_BYTES=99):
        asyncio.run(asyncio.wait_for(leave(), 60))


@pytest.mark.parametrize(("times", "is_read"), [(1, True), (4, True), (6, False), (99, False)])
def test_compressed_body_is_read_up_to_so_many_times_its_size(times: int, is_read: bool) -> None:
    noise = random.Random(0).randbytes(100_000).hex()
    data = f'{{"a": "{noise}", "b": "{"x" * (times - 1) * len(noise)}", "model": "m"}}'.encode()
    sent = gzip.compress(data)
    fields = {"content-type": "application/json", "content-encoding": "gzip"}
    head = RequestHead("POST", "/v1/completions", fields | {"content-length": str(len(sent))})
    body = RequestBody(head, NoSource())
    body.feed(sent)
    body.end()
    asyncio.run(body.read_prefix(10_000_000, room=BodyRoom()))
    assert read_hints(head, body).model == ("m" if is_read else None)


def test_a_growing_conversation_keeps_its_key() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    first = hints(messages=messages)
    messages += [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Bye"}]
    assert first.affinity_key == hints(messages=messages).affinity_key is not None
    messages[1]["content"] = "Another conversation"
    assert first.affinity_key != hints(messages=messages).affinity_key


@pytest.mark.parametrize("name", ["text", "prompt"])
def test_prompts_with_the_same_long_beginning_share_a_key(name: str) -> None:
    beginning = "You are a helpful assistant. " * 20
    one, other = hints(**{name: beginning + "One"}), hints(**{name: beginning + "Other"})
    assert one.affinity_key == other.affinity_key
    assert one.affinity_key != hints(**{name: "Something else"}).affinity_key


def test_a_session_goes_before_its_prompt() -> None:
    one, other = hints(session_id="s", text="a"), hints(session_id="s", text="b")
    assert one.affinity_key == other.affinity_key


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 100_000, b'{"model": 7}', b'{"text": {}}'],
)
def test_bodies_that_say_nothing_are_no_fault_here(data: bytes) -> None:
    assert hints_of(data) == RoutingHints()


@pytest.mark.parametrize(
    "prompt", [["a", "b"], [1, 2, 3], [[1, 2]], [None], {"a": 1}, 7, [{"content": [{"text": "x"}]}]]
)
def test_odd_prompts_have_some_key_or_none(prompt: object) -> None:
    assert isinstance(hints(prompt=prompt), RoutingHints)


def test_prompt_of_ids_is_known_by_more_than_its_first() -> None:
    assert hints(prompt=[1, 2, 3]).affinity_key != hints(prompt=[1, 2, 4]).affinity_key
    long = list(range(1000))
    assert hints(prompt=long).affinity_key == hints(prompt=[*long, 7]).affinity_key


def test_openais_name_of_a_prefix_is_a_key_and_no_session() -> None:
    named = hints(prompt_cache_key="k", prompt="x")
    assert named.affinity_key == hints(prompt_cache_key="k", prompt="y").affinity_key
    assert named.routed("team", "1").route_key != named.routed("team", "2").route_key


@pytest.mark.parametrize("name", ["session_id", "prompt", "prompt_cache_key"])
def test_key_is_short_whatever_a_client_sends(name: str) -> None:
    key = hints(**{name: "x" * 200_000}).affinity_key
    assert key is not None
    assert len(key) < 300


@pytest.mark.parametrize(
    ("target", "model"),
    [
        ("/inference/m", "m"),
        ("/inference/m?x=/chat/n", "m"),
        ("/predictions/a%2Db", "a-b"),
        ("/chat//m", "m"),
        ("/chat/a/b", "a/b"),
        ("/chat/a%2Fb", "a/b"),
        ("/chat/", None),
        ("/inference", None),
        ("/v1/models/m", None),
        ("/", None),
    ],
)
def test_model_in_the_path(target: str, model: str | None) -> None:
    assert hints(target, "text/plain").model == model


def test_model_in_the_body_counts_only_where_the_server_reads_it() -> None:
    assert hints("/v1/completions", model="m").model == "m"
    assert hints("/inference", model="m").model is None
    assert hints("/inference/n", model="m").model == "n"


@pytest.mark.parametrize("name", ["Model", "MODEL", "mODEL"])
def test_a_model_that_only_some_servers_would_read_is_refused(name: str) -> None:
    for named in ({}, {"model": "m"}):
        with pytest.raises(BadRequest, match="in capitals"):
            hints(**{**named, name: "n"})
    assert hints("/inference/m", **{name: "n"}).model == "m"
    assert hints("/addServer", **{name: "n"}).model is None


@pytest.mark.parametrize(
    ("method", "target", "is_fine"),
    [
        ("GET", "/", True),
        ("GET", "//x", True),
        ("OPTIONS", "*", True),
        ("GET", "*", False),
        ("GET", "p:80", False),
        ("GET", "/x#y", False),
        ("CONNECT", "/x", False),
        ("TRACE", "/x", False),
    ],
)
def test_targets(method: str, target: str, is_fine: bool) -> None:
    assert (target_fault(method, target) is None) == is_fine


@pytest.mark.parametrize(
    "path",
    ["/v1/embeddings", "/v1/messages", "/v1/responses", "/inference/a", "/v1/completions",
     "/openai/deployments/a/chat/completions",
     "/openai/deployments/a\n/b/embeddings"],
)  # fmt: skip
def test_what_a_row_answers_takes_one(path: str) -> None:
    assert takes_row("POST", path)
    assert not takes_row("GET", path)
    assert not takes_row("POST", "/v1/messages/count_tokens")


@given(
    st.text("ab/ %?\n", min_size=1).filter(lambda name: "//" not in f"/{name}/"),
    st.sampled_from(["chat/completions", "completions", "embeddings"]),
    st.sampled_from(["", "/", "?api-version=1", "/?a=/completions"]),
)
def test_a_deployment_is_the_model_whatever_the_body_says(name: str, route: str, end: str) -> None:
    target = f"/openai/deployments/{quote(name)}/{route}{end}"
    found = hints(target, model="other", stream=True, prompt="a")
    assert found.model == name
    assert found.may_ask_usage == (route != "embeddings")
    assert hints(f"{target.partition('?')[0].rstrip('/')}/x", model="other").model == "other"


@given(
    st.recursive(st.sampled_from(LEAVES), containers),
    st.sampled_from([b"", b" ", b"\xef\xbb\xbf", b"\x00"]),
    st.sampled_from(["utf-8", "utf-16", "utf-16-le", "utf-32"]),
)
def test_a_body_is_read_as_json_loads_reads_it(data: bytes, before: bytes, encoding: str) -> None:
    """Which model a team may use is decided by it."""

    def read(parse: Callable[[bytes], object]) -> str:
        try:
            return repr(parse(sent))
        except (ValueError, RecursionError):
            return "refused"

    sent = (before + data).decode(errors="replace").encode(encoding)
    assert read(parsed) == read(json.loads)
    sent = before + data
    assert read(parsed) == read(json.loads)
