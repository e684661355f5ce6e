"""A demo search from the dashboard, with real ranks: started, watched and stopped."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from benchmarking.serving import MOCK_APP, ServedApi, eventually, served
from tests.e2e.pages import opened, show


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    folder = tmp_path_factory.mktemp("demo")
    with served(folder / "log", MOCK_APP, WEIGHTS_DB=folder / "weights.db") as api:
        yield api


def test_a_search_is_started_and_stopped_by_keyboard(api: ServedApi, browser: Browser) -> None:
    with opened(browser, api.url) as page:
        show(page, "weights")
        expect(page.get_by_role("button", name="Stop").last).to_be_disabled()
        page.get_by_role("button", name="Start a demo search").focus()
        page.keyboard.press("Enter")
        stop = page.get_by_role("button", name="Stop").last
        expect(stop).to_be_focused()
        status = page.locator("#demo-status")
        expect(status).to_have_text("The ranks are starting.")
        expect(status).to_have_text(re.compile(r"^[1-8] of at most 8 trials\.$"))
        expect(page.locator("#session-title")).to_have_text(re.compile("^demo 2"))
        page.keyboard.press("Enter")
        expect(status).to_contain_text("Stopped.")
        expect(page.locator("#demo-lines")).to_contain_text("shares of a core")
    sessions = api.get("/weights/sessions").json()["sessions"]
    assert [each["number_of_nodes"] for each in sessions] == [3]
    eventually(lambda: api.get("/weights/demo").json()["status"] == "stopped")
