""" "How many GPUs?" on the dashboard: the form, its answer, and that everybody can use it."""

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from lab.kit.servers import ServedApi
from tests.e2e.browser.pages import check_accessibility, opened, show


@pytest.fixture(scope="module")
def api(mock_api: ServedApi) -> ServedApi:
    return mock_api


def ask(page: Page, model: str = "llama-3.1-8b", **fields: str) -> None:
    show(page, "optimizer")
    form = page.locator("#plan-form")
    form.get_by_label("Model").select_option(model)
    for name, value in fields.items():
        form.locator(f"[name={name}]").fill(value)
    form.get_by_role("button", name="How many?").click()


def test_a_load_and_its_levels_get_accelerators_costs_and_reasons_for_everybody(page: Page) -> None:
    ask(page)
    expect(page.locator("#plan-status")).to_have_text(
        re.compile(r"^Cheapest: \d+ cards? of (NVIDIA|AMD) .*, for \$[\d.]+ per hour\.$")
    )
    line = page.locator(".choices tr[data-accelerator=h100]")
    expect(line).to_contain_text("NVIDIA H100 80 GB SXM")
    expect(line).to_contain_text("estimated from the datasheet")
    expect(line.locator("td[data-label=Cost]")).to_have_text(re.compile(r"^\$[\d.]+/h"))
    fitted = page.locator(".choices tr", has_text="fitted to published figures").first
    expect(fitted.get_by_role("link").first).to_have_attribute("href", re.compile("^https://"))
    reasons = page.locator("#plan-answer")
    expect(reasons).to_contain_text("At half the ITL, 20 ms")
    check_accessibility(page, ".plan")


def test_levels_that_nothing_meets_are_answered_with_the_nearest(page: Page) -> None:
    ask(page, **{"slo-itl": "0.01"})
    expect(page.locator("#plan-status")).to_contain_text("The nearest, ")
    expect(page.locator("table.choices")).to_have_count(0)


def test_what_the_server_refuses_is_told(api: ServedApi, browser: Browser) -> None:
    with opened(browser, api.url, may_log="status of 400") as page:
        ask(page, avgInTokens="200000")
        expect(page.locator("#plan-fault")).to_contain_text("exceed the 131072 of llama-3.1-8b")


def test_the_form_is_filled_and_sent_by_keyboard(page: Page) -> None:
    show(page, "optimizer")
    form = page.locator("#plan-form")
    expect(form.get_by_label("Model")).not_to_be_empty()
    form.get_by_label("Model").focus()
    page.keyboard.type("qwen3-8b")
    page.keyboard.press("Tab")
    expect(form.get_by_label("Requests per second")).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("2")
    with page.expect_request("**/howmany") as sent:
        page.keyboard.press("Enter")
    asked: Any = sent.value.post_data_json
    assert asked == {
        "model": "qwen3-8b", "arrivalRate": 120, "slo-ttft": 500, "slo-itl": 40,
        "avgInTokens": 512, "avgOutTokens": 256,
    }  # fmt: skip
    expect(page.locator("#plan-status")).to_contain_text("Cheapest: ")
