"""The browser of the package, and a page of the module's `api`."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from lab.kit.servers import ServedApi
from tests.e2e.browser.pages import ARGUMENTS, CHROMIUM, TIMEOUT_MS, opened


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=ARGUMENTS, timeout=TIMEOUT_MS
        )
        yield browser
        browser.close()


@pytest.fixture
def page(api: ServedApi, browser: Browser) -> Iterator[Page]:
    """The dashboard of the module's `api`."""
    with opened(browser, api.url) as page:
        yield page
