"""The page at /docs/: it shows every route, tries one, and asks no other host."""

from playwright.sync_api import Browser, expect

from lab.kit.servers import ServedApi
from tests.e2e.browser.pages import opened


def test_page_shows_and_tries_routes_without_another_host(
    mock_api: ServedApi, browser: Browser
) -> None:
    with opened(browser, f"{mock_api.url}/docs/") as page:
        expect(page.locator("h1, h2").filter(has_text="Hearth")).to_be_visible()
        for tag in ("generate", "models", "openai", "health", "optimizer", "weights"):
            expect(page.locator(f"#operations-tag-{tag}")).to_be_visible()
        models = page.locator("#operations-models-get_v1_models")
        models.click()
        models.get_by_role("button", name="Try it out").click()
        models.get_by_role("button", name="Execute").click()
        expect(models.locator(".live-responses-table")).to_contain_text("hearth-tiny")
