"""Which origins a list allows, and what an origin is."""

import pytest

from common.addresses import ORIGIN, is_allowed


@pytest.mark.parametrize(
    "origin", ["*", "local", "none", "https://a.example", "http://127.0.0.1:7000", "app://x"]
)
def test_what_browsers_send_is_an_origin(origin: str) -> None:
    assert ORIGIN.fullmatch(origin)


@pytest.mark.parametrize("other", ["", "a.example", "https://A.example", "https://a.example/"])
def test_anything_else_is_none(other: str) -> None:
    assert not ORIGIN.fullmatch(other)


def test_a_star_allows_every_origin_but_none() -> None:
    assert is_allowed("https://a.example", ["*"])
    assert is_allowed("https://a.example", ["https://a.example"])
    assert not is_allowed("https://b.example", ["https://a.example"])
    assert not is_allowed(None, ["*"])


LOCAL_PAGES = ["http://localhost", "http://localhost:5173", "http://127.0.0.1:8080"]
OTHER_PAGES = [
    "http://localhost.evil.com",
    "http://localhost.evil.com:5173",
    "http://evil.com",
    "http://evil.com#http://localhost:1",
    "http://localhost:1@evil.com",
    "http://localhost:x",
    "http://localhost:",
    "http://localhost:1\n",
    "http://127.0.0.1.evil.com",
    "http://127x0x0x1",
    "http://xlocalhost",
    "https://localhost:5173",
    "http://LOCALHOST",
    "null",
    "",
]


@pytest.mark.parametrize("origin", LOCAL_PAGES)
def test_local_pages_are_of_any_port(origin: str) -> None:
    assert is_allowed(origin, ["local"])
    assert not is_allowed(origin, ["https://a.example"])
    assert not is_allowed(origin, [])


@pytest.mark.parametrize("origin", OTHER_PAGES)
def test_names_that_begin_like_a_local_one_are_others(origin: str) -> None:
    assert not is_allowed(origin, ["local"])
