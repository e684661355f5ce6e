"""The dashboard of a server that asks for a token, and that others work with too."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jwt
import pytest
from playwright.sync_api import Browser, Page, expect

from lab.kit.servers import MOCK_APP, ServedApi
from tests.e2e.browser.pages import answer_of, ask, check_accessibility, opened, solve_example
from tests.forked import served

SECRET = "a secret that is long enough for HS256"


@pytest.fixture(scope="module")
def guarded_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    """Asks for tokens; its optimizer is stateful."""
    folder = tmp_path_factory.mktemp("guarded")
    settings: dict[str, Any] = {
        "JWT_SECRET": SECRET,
        "OPTIMIZER_STATEFUL": "true",
        "OPTIMIZER_STORE_PATH": folder / "optimizer.db",
        "WEIGHTS_DB": folder / "weights.db",
    }
    with served(folder / "log", MOCK_APP, **settings) as api:
        yield api


@contextmanager
def entered(browser: Browser, api: ServedApi, may_log: str = "^$") -> Iterator[Page]:
    """The page of a server that asks for a token, once it has one."""
    with opened(browser, api.url, may_log + "|status of 401") as page:
        field = page.get_by_label("Bearer token")
        field.fill(jwt.encode({"team_id": "a", "token_id": "b"}, SECRET, algorithm="HS256"))
        field.press("Enter")
        expect(page.locator("#server-phase")).to_have_text("ready")
        yield page


def test_a_token_is_asked_for_and_kept_in_the_tab_only(
    guarded_api: ServedApi, browser: Browser
) -> None:
    with opened(browser, guarded_api.url, "status of 401") as page:
        dialog = page.get_by_role("dialog")
        field = dialog.get_by_label("Bearer token")
        expect(field).to_be_focused()
        field.fill("not a token")
        field.press("Enter")
        expect(dialog.get_by_role("alert")).to_have_text("The server refused this token.")
        check_accessibility(page, "#token-dialog")
    with entered(browser, guarded_api) as page:
        expect(page.get_by_role("dialog")).to_be_hidden()
        ask(page, "hello", 5)
        expect(answer_of(page).locator(".answer")).to_have_text("User:")
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


def test_a_stateful_optimizer_keeps_what_others_changed(
    guarded_api: ServedApi, browser: Browser
) -> None:
    with entered(browser, guarded_api) as page:
        solve_example(page)
        rate = page.get_by_label("Requests per minute, Premium-llama_70b")
        rate.fill("300")
        with page.expect_request("**/setServers") as sent, page.expect_request("**/optimize"):
            rate.press("Enter")
        body: Any = sent.value.post_data_json
        assert [server["name"] for server in body["servers"]] == ["Premium-llama_70b"]
        expect(page.locator("#optimizer-status")).to_contain_text("Solved: ")
        expect(rate).to_have_value("300")


def test_a_server_that_is_gone_is_missed_and_found_again(
    guarded_api: ServedApi, browser: Browser
) -> None:
    with entered(browser, guarded_api, "ERR_FAILED") as page:
        page.route("**/dashboard/state", lambda route: route.abort())
        expect(page.locator("#server-phase")).to_have_text("unreachable")
        expect(page.locator("#notice")).to_contain_text("does not answer")
        page.unroute("**/dashboard/state")
        expect(page.locator("#server-phase")).to_have_text("ready")
        expect(page.locator("#notice")).to_be_hidden()
