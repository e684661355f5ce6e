"""The file of upstreams' keys."""

import pytest

from proxy.upstreams.specs import parse_keys


def test_key_is_a_bearer_token_or_in_a_header_of_its_own() -> None:
    text = "http://a:1/v1/: sk-1\nhttps://b: {x-api-key: sk-2}\n"
    assert parse_keys(text) == {
        "http://a:1/v1": ("Authorization", "Bearer sk-1"),
        "https://b": ("x-api-key", "sk-2"),
    }
    assert parse_keys("") == {}


@pytest.mark.parametrize(
    "text",
    [
        "http://a: sk-secret\n b: [",
        "http://a: 'sk-secret",
        "sk-secret",
        "[sk-secret]",
        "a: sk-secret",
        "http://a: [sk-secret]",
        "http://a: 'sk-secret\r\nX-Team-Id: evil'",
        "http://a: {x-api-key: sk-secret, y: z}",
        "http://a: {'x: y': sk-secret}",
        "http://a: ",
        "http://a: 7",
    ],
)
def test_mistake_is_told_without_the_key(text: str) -> None:
    with pytest.raises(ValueError, match=r"entry|YAML|mapping") as caught:
        parse_keys(text)
    assert "secret" not in str(caught.value)
