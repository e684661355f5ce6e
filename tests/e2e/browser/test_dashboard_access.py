"""The dashboard for everybody: by keyboard, in the dark, on a narrow screen, read aloud."""

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from lab.kit.servers import ServedApi
from tests.e2e.browser.pages import (
    VIEWS,
    answer_of,
    busy,
    check_accessibility,
    opened,
    show,
    solve_example,
    tab_to,
)

MIDDLE: ViewportSize = {"width": 800, "height": 800}


@pytest.fixture(scope="module")
def api(model_api: ServedApi) -> ServedApi:
    return model_api


def test_everything_is_reached_by_keyboard(api: ServedApi, page: Page) -> None:
    expect(page.locator("#server-phase")).to_have_text("ready")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="New conversation")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_label("Bare text")).to_be_checked()
    tab_to(page, page.get_by_role("textbox", name="Prompt", exact=True))
    page.keyboard.type("What is the capital of Kenya?")
    page.keyboard.press("Control+Enter")
    expect(answer_of(page)).to_contain_text("Nairobi")
    cells = page.locator(".cell")
    tab_to(page, cells.nth(0))
    page.keyboard.press("ArrowDown")
    expect(cells.nth(8)).to_be_focused()
    page.keyboard.press("End")
    expect(cells.nth(31)).to_be_focused()
    expect(page.locator("#row-detail")).to_have_text("Row 32 is free.")
    page.keyboard.press("Tab")  # out of the rows: they are one stop
    expect(page.get_by_label("Sort by")).to_be_focused()
    page.keyboard.press("Tab")  # into what scrolls
    expect(page.locator("#requests-log")).to_be_focused()
    page.get_by_role("link", name="Optimizer").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#view-optimizer")).to_be_visible()
    expect(page.get_by_role("link", name="Optimizer")).to_be_focused()


def test_why_is_asked_and_told_by_keyboard(page: Page) -> None:
    solve_example(page)
    page.get_by_role("link", name="Optimizer").focus()
    why = page.get_by_role("button", name="Why?").first
    tab_to(page, why)
    page.keyboard.press("Enter")
    expect(page.locator(".candidates")).to_be_visible()
    expect(why).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".candidates")).to_have_count(0)


def test_no_view_of_a_busy_server_breaks_a_rule_of_accessibility(
    slow_api: ServedApi, browser: Browser
) -> None:
    with busy(slow_api, 6), opened(browser, slow_api.url) as page:
        expect(page.locator(".cell[data-phase=decode]").first).to_be_visible()
        solve_example(page)
        page.get_by_role("button", name="Why?").first.click()
        for view in VIEWS:
            show(page, view)
            page.set_viewport_size(MIDDLE)
            assert page.evaluate("document.documentElement.scrollWidth") == MIDDLE["width"]
            check_accessibility(page)


def test_dark_mode_follows_the_system(page: Page) -> None:
    def ground(scheme: Any) -> int:
        page.emulate_media(color_scheme=scheme)
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in re.findall(r"\d+", color))

    assert ground("dark") < 100 < 600 < ground("light")
