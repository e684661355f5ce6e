"""The page at /docs/ in real Chromium: it shows every route, tries one, and asks no other host."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from lab.kit.servers import ServedApi

TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def api(mock_api: ServedApi) -> ServedApi:
    return mock_api


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        yield page
        browser.close()


def test_page_shows_and_tries_routes_without_another_host(api: ServedApi, page: Page) -> None:
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda sent: asked.append(sent.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{api.url}/docs/")
    expect(page.locator("h1, h2").filter(has_text="Hearth")).to_be_visible(timeout=TIMEOUT_MS)
    for tag in ("generate", "models", "openai", "health", "optimizer", "weights"):
        expect(page.locator(f"#operations-tag-{tag}")).to_be_visible()
    models = page.locator("#operations-models-get_v1_models")
    models.click()
    models.get_by_role("button", name="Try it out").click()
    models.get_by_role("button", name="Execute").click()
    expect(models.locator(".live-responses-table")).to_contain_text("hearth-tiny")
    assert errors == []
    assert asked
    for url in asked:
        assert url.startswith((f"{api.url}/", "data:")), url
