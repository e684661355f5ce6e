"""Errors as clients see them, and faults at start."""

import pytest
from pydantic import Field
from pydantic_settings import BaseSettings

from common.errors import StoreFailed, WireError, error_body, is_of_messages, messages_error
from common.startup import StartupError, read_settings


class Busy(WireError):
    status = 503
    code = "busy"
    param = "model"


def test_an_error_has_the_documented_keys_and_openais() -> None:
    assert Busy("come again").body() == {
        "status_code": 503,
        "message": "come again",
        "error": {
            "message": "come again", "type": "server_error", "param": "model", "code": "busy",
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (303, "authentication_error"),
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (504, "server_error"),
    ],
)
def test_the_type_follows_from_the_status(status: int, kind: str) -> None:
    assert error_body(status, "m", "c")["error"]["type"] == kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_anthropics_type_follows_from_the_status(status: int, kind: str) -> None:
    error = {"type": kind, "message": "m"}
    assert messages_error(status, "m", "r") == {"type": "error", "error": error, "request_id": "r"}


def test_what_begins_like_the_path_of_messages_is_another() -> None:
    assert is_of_messages("/v1/messages")
    assert is_of_messages("/v1/messages/count_tokens")
    assert not is_of_messages("/v1/messages2")


def test_a_store_that_fails_is_a_503() -> None:
    body = StoreFailed("no space left").body()
    assert (body["status_code"], body["error"]["code"]) == (503, "store_failed")


class CoffeeCannotStart(StartupError):
    service = "The coffee machine"


def test_every_fault_is_listed() -> None:
    error = CoffeeCannotStart(["no water", "no beans"])
    assert str(error) == "The coffee machine cannot start:\n  - no water\n  - no beans"
    assert error.faults == ("no water", "no beans")


class CoffeeSettings(BaseSettings):
    cups: int = Field(1, validation_alias="COFFEE_CUPS")
    secret: int = Field(1, validation_alias="COFFEE_SECRET")


def test_settings_are_named_with_their_values_but_for_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COFFEE_CUPS", "none")
    monkeypatch.setenv("COFFEE_SECRET", "hunter2")
    with pytest.raises(CoffeeCannotStart) as caught:
        read_settings(CoffeeSettings, CoffeeCannotStart)
    assert [fault.split(":")[0] for fault in caught.value.faults] == [
        "COFFEE_CUPS='none'",
        "COFFEE_SECRET=***",
    ]
    assert "hunter2" not in str(caught.value)
    assert (
        read_settings(CoffeeSettings, CoffeeCannotStart, COFFEE_CUPS=2, COFFEE_SECRET=3).cups == 2
    )
