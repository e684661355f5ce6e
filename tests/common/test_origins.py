"""Which origins a list allows, and what an origin is."""

import pytest

from common.origins import ORIGIN, is_allowed


@pytest.mark.parametrize("origin", ["*", "https://a.example", "http://127.0.0.1:7000", "app://x"])
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
