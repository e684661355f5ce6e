"""Requests read from bytes that come in any pieces. No sockets."""

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.clients.request_head import (
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    RequestHead,
    RequestPart,
    RequestReader,
)
from proxy.errors import BadRequest, ExpectationFailed, HeadTooLarge, ProxyError

CHUNKED = b"Host: p\r\nTransfer-Encoding: chunked\r\n\r\n"
REQUESTS = {
    "none": b"GET /a?b=c HTTP/1.1\r\nHost: p\r\nX-A: 1\r\nx-a: 2\r\n\r\n",
    "blank lines before": b"\r\n\r\n\r\nGET /a HTTP/1.1\r\nHost: p\r\n\r\n",
    "sized": b"POST /a HTTP/1.1\r\nHost: p\r\nContent-Length: 5\r\n\r\nhello",
    "chunked": b"POST /a HTTP/1.1\r\n"
    + CHUNKED
    + b"2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nX-T: 1\r\n\r\n",
    "upgrade": b"GET /a HTTP/1.1\r\nHost: p\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "upgrade, sized": b"POST /a HTTP/1.1\r\nHost: p\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    b"Content-Length: 5\r\n\r\nhello",
    "upgrade, chunked": b"POST /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    + CHUNKED
    + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    "CONNECT, chunked": b"CONNECT p:80 HTTP/1.1\r\n" + CHUNKED + b"5\r\nhello\r\n0\r\n\r\n",
    "old": b"POST /a HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello",
}


@dataclass
class Reading:
    """What a reader has made of the bytes so far."""

    heads: list[RequestHead] = field(default_factory=list)
    body: bytes = b""
    num_pieces: int = 0
    rest: bytes = b""

    def __post_init__(self) -> None:
        self.reader = RequestReader(self.heads.append, self.add)

    def add(self, piece: bytes) -> None:
        self.body += piece
        self.num_pieces += 1

    def feed(self, *pieces: bytes) -> "Reading":
        for piece in pieces:
            self.rest += piece if self.reader.part is RequestPart.NONE else self.reader.feed(piece)
        return self

    @property
    def head(self) -> RequestHead:
        (head,) = self.heads
        return head


def read(data: bytes) -> Reading:
    return Reading().feed(data)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(bounds) if a < b]


@pytest.mark.parametrize("data", REQUESTS.values(), ids=REQUESTS.keys())
@given(places=st.lists(st.integers(0, 10_000), max_size=40))
def test_any_pieces_make_the_same_request(data: bytes, places: list[int]) -> None:
    whole, cut_up = read(data), Reading().feed(*cut(data, places))
    assert whole.reader.part is cut_up.reader.part is RequestPart.NONE
    assert (cut_up.head, cut_up.body) == (whole.head, whole.body)
    assert not whole.reader.has_overrun
    assert whole.body in (b"", b"hello")
    assert bool(whole.body) == (b"llo" in data)


@pytest.mark.parametrize("name", ["none", "sized", "upgrade", "upgrade, sized"])
@given(places=st.lists(st.integers(0, 10_000), max_size=9))
def test_what_follows_is_the_next_requests(name: str, places: list[int]) -> None:
    data, follows = REQUESTS[name], b"GET /next HTTP/1.1\r\nHost: p\r\n\r\nand more"
    reading = Reading().feed(*cut(data + follows, places))
    assert reading.rest == follows
    assert reading.body == read(data).body
    assert not reading.reader.has_overrun


@pytest.mark.parametrize(
    "follows", [b"G", b"GET /next HTTP/1.1\r\nHost: p\r\n\r\n", b"\0", b"0\r\n\r\n"]
)
@pytest.mark.parametrize("name", ["chunked", "upgrade, chunked"])
def test_what_is_lost_behind_chunks_is_known_to_be(name: str, follows: bytes) -> None:
    reading = read(REQUESTS[name] + follows)
    assert (reading.reader.part, reading.body, reading.rest) == (RequestPart.NONE, b"hello", b"")
    assert len(reading.heads) == 1
    assert reading.reader.has_overrun


def test_fields_of_one_name_are_joined_and_ambiguous_names_dropped() -> None:
    head = read(b"GET / HTTP/1.1\r\nHost: p\r\nX-A: 1\r\nx-a:  2 \r\nX_Team_Id: evil\r\n\r\n").head
    assert head.fields == {"host": "p", "x-a": "1,2"}


def test_old_clients_are_known() -> None:
    head = read(REQUESTS["old"]).head
    assert (head.is_http_1_0, head.keeps_alive) == (True, False)
    head = read(b"GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").head
    assert not head.expects_continue


# Printable ASCII without the delimiters of the part; the first may have brackets for IPv6.
HOSTS = st.text("aZ0.-_[]", min_size=1, max_size=9) | st.sampled_from(["p", "[::1]:80", "p:1"])
PATHS = st.text("aZ0/%:@?&=.;", max_size=20)


@given(st.sampled_from(["http", "HTTPS"]), HOSTS, PATHS, st.sampled_from([b"GET", b"POST"]))
def test_url_is_the_request_of_its_path_to_its_host(
    scheme: str, host: str, path: str, method: bytes
) -> None:
    path = path if path.startswith(("/", "?")) else f"/{path}"
    url = f"{scheme}://{host}{path}".encode()
    head = read(method + b" " + url + b" HTTP/1.1\r\nHost: other\r\nX: 1\r\n\r\n").head
    plain = f" /{path.removeprefix('/')} HTTP/1.1\r\nHost: {host}\r\nX: 1\r\n\r\n"
    assert head == read(method + plain.encode()).head


@pytest.mark.parametrize(("line", "target"), [(b"GET http://p", "/"), (b"OPTIONS http://p", "*")])
def test_url_without_a_path_is_about_the_root_or_the_server(line: bytes, target: str) -> None:
    assert read(line + b" HTTP/1.1\r\nHost: p\r\n\r\n").head.target == target


def test_url_excuses_no_missing_host() -> None:
    with pytest.raises(BadRequest, match="Host"):
        read(b"GET http://p/a HTTP/1.1\r\n\r\n")


MEMBERS = st.sampled_from(["100-continue", "100-Continue", " 100-CONTINUE\t", "", " "])


@given(st.lists(MEMBERS, min_size=1, max_size=4), st.sampled_from([",", "\r\nExpect: "]))
def test_expectation_may_be_repeated(members: list[str], separator: str) -> None:
    expect = separator.join([*members, "100-continue"])
    data = f"POST / HTTP/1.1\r\nHost: p\r\nExpect: {expect}\r\nContent-Length: 1\r\n\r\n"
    assert read(data.encode()).head.expects_continue
    with pytest.raises(ExpectationFailed):
        read(data.replace("\r\nContent", "\r\nExpect: 200-ok\r\nContent").encode())


@pytest.mark.parametrize(("fields", "keeps"), [(b"", True), (b"Connection: close\r\n", False)])
def test_client_says_whether_it_goes_on(fields: bytes, keeps: bool) -> None:
    assert read(b"GET / HTTP/1.1\r\nHost: p\r\n" + fields + b"\r\n").head.keeps_alive is keeps


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST / HTTP/1.0\r\n" + CHUNKED,
        b"GET / HTTP/2.0\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + CHUNKED + b"0\r\nContent-Length: 3\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + CHUNKED + b"0\r\nAuthorization: x\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + CHUNKED + b"z\r\n",
        b"\0",
    ],
)
def test_what_two_servers_could_read_in_two_ways_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        read(data)


@pytest.mark.parametrize("step", [1, 1000, 10**6])
@pytest.mark.parametrize(
    "endless",
    [
        b"GET /" + b"a" * MAX_HEAD_BYTES,
        b"GET / HTTP/1.1\r\nHost: p\r\nX: " + b"a" * MAX_HEAD_BYTES,
        b"\r\n" * MAX_HEAD_BYTES,
        b"GET / HTTP/1.1\r\nHost: p\r\n" + b"X: 1\r\n" * (MAX_FIELDS + 1) + b"\r\n",
        b"POST / HTTP/1.1\r\n" + CHUNKED + b"0\r\nX: " + b"a" * MAX_HEAD_BYTES,
        b"POST / HTTP/1.1\r\n" + CHUNKED + b"0\r\n" + b"X: 1\r\n" * MAX_HEAD_BYTES,
        b"POST / HTTP/1.1\r\n" + CHUNKED + b"1;" + b"a" * 2 * MAX_HEAD_BYTES,
    ],
    ids=["target", "value", "blank lines", "fields", "trailer", "trailers", "chunk extension"],
)
def test_no_part_of_it_is_endless(endless: bytes, step: int) -> None:
    reading = Reading()
    with pytest.raises(HeadTooLarge):
        reading.feed(*(endless[at : at + step] for at in range(0, len(endless), step)))


def test_largest_head_passes() -> None:
    start = b"GET / HTTP/1.1\r\nHost: p\r\nX: "
    data = start + b"a" * (MAX_HEAD_BYTES - len(start) - 4) + b"\r\n\r\n"
    assert len(data) == MAX_HEAD_BYTES
    assert len(Reading().feed(data[:1000], data[1000:]).head.fields["x"]) > 65_000
    many = b"GET / HTTP/1.1\r\nHost: p\r\n" + b"X: 1\r\n" * (MAX_FIELDS - 1) + b"\r\n"
    assert read(many).reader.part is RequestPart.NONE


def test_tiny_chunks_are_handed_over_together() -> None:
    """Each piece is an object of its own for as long as the body is held."""
    chunks = b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n"
    reading = read(b"POST / HTTP/1.1\r\n" + CHUNKED + chunks)
    assert (reading.body, reading.num_pieces) == (b"x" * 1000, 1)


@given(data=st.binary(max_size=300), places=st.lists(st.integers(0, 10_000), max_size=5))
def test_no_bytes_do_more_than_be_refused(data: bytes, places: list[int]) -> None:
    check_it_is_refused_at_most(cut(data, places))


def test_no_mutated_request_does_more_than_be_refused() -> None:
    dice = random.Random(17)
    for _ in range(5_000):
        data = bytearray(b"".join(dice.choices(list(REQUESTS.values()), k=dice.randint(1, 2))))
        for _ in range(dice.randint(0, 4)):
            at = dice.randrange(len(data))
            match dice.randrange(4):
                case 0:
                    data[at] = dice.randrange(256)
                case 1:
                    del data[at : at + dice.randint(1, 9)]
                case 2:
                    data[at:at] = dice.choice((b"\r\n", b"\0", b"\r\n\r\n", b"0\r\n\r\n", b":"))
                case 3:
                    data[at:at] = data[at : at + dice.randint(1, 30)]
            if not data:
                break
        check_it_is_refused_at_most(cut(bytes(data), [dice.randrange(500) for _ in range(3)]))


def check_it_is_refused_at_most(pieces: list[bytes]) -> None:
    reading = Reading()
    for _ in range(10):
        try:
            reading.feed(*pieces)
        except ProxyError:
            break
        assert len(reading.heads) <= 1
        if not (pieces := [reading.rest] if reading.rest else []):
            break
        reading = Reading()
