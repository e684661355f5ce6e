"""What the tests of the dashboard do with its page, in real Chromium.

Every page is watched: whatever it logs as an error, and whatever it asks of another host, fails
the test it happened in.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import requests
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

from lab.kit.servers import ServedApi, eventually

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE: ViewportSize = {"width": 1280, "height": 780}
NARROW: ViewportSize = {"width": 390, "height": 800}
VIEWS = ("serving", "optimizer", "weights")
TEAMS = ("search", "support", "research", "docs-bot")
# A scheme changes colours alone: the second one is held to the rule of contrast only.
RULES_BY_SCHEME: dict[Literal["dark", "light"], list[str]] = {
    "dark": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "light": ["color-contrast"],
}
TIMEOUT_MS = 60_000

expect.set_options(timeout=TIMEOUT_MS)


@contextmanager
def opened(browser: Browser, url: str, may_log: str = "^$", **options: Any) -> Iterator[Page]:
    """A page of its own, watched for errors and for requests that leave its origin.

    What matches `may_log` is expected: browsers log every answer of 400 and above.
    """
    context = browser.new_context(**{"viewport": WIDE, "reduced_motion": "reduce"} | options)
    lines: list[str] = []
    asked: list[str] = []
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.on("console", lambda line: lines.append(f"{line.type}: {line.text}"))
    page.on("pageerror", lambda error: lines.append(f"error: {error}"))
    page.on("request", lambda sent: asked.append(sent.url))
    page.goto(url)
    yield page
    context.close()
    errors = [line for line in lines if line.startswith("error")]
    assert [error for error in errors if not re.search(may_log, error)] == []
    assert [each for each in asked if not each.startswith(url)] == []


@contextmanager
def busy(api: ServedApi, num_rows: int) -> Iterator[None]:
    """That many rows generate until the end, for a few teams."""

    def stream(row: int) -> requests.Response:
        body = {
            "model": "hearth-tiny",
            "prompt": "Tell me a story about a fox who travels far. " * (1 + row % 5),
            "max_tokens": 1700,
            "ignore_eos": True,
            "stream": True,
            "seed": row,
        }
        who = {"X-Team-Id": TEAMS[row % 4], "X-Request-Id": f"request-{row}"}
        return requests.post(
            f"{api.url}/v1/completions", json=body, headers=who, stream=True, timeout=60
        )

    with ExitStack() as stack, ThreadPoolExecutor(num_rows) as pool:
        for answer in pool.map(stream, range(num_rows)):
            stack.enter_context(answer)
        yield
    eventually(api.is_idle)


def show(page: Page, view: str) -> None:
    page.get_by_role("link", name=view.capitalize()).click()
    expect(page.locator(f"#view-{view}")).to_be_visible()


def check_accessibility(page: Page) -> None:
    """Axe finds nothing, and nothing needs scrolling sideways: narrow and wide, dark and light."""
    for size in (NARROW, WIDE):
        page.set_viewport_size(size)
        for scheme, rules in RULES_BY_SCHEME.items():
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            found = Axe().run(page, options={"runOnly": rules, "resultTypes": ["violations"]})
            told = f"{size['width']} px, {scheme}: {found.generate_report()}"
            assert found.violations_count == 0, told
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def solve_example(page: Page) -> None:
    """Bring the optimizer's view to a solved system, whatever an earlier test left."""
    show(page, "optimizer")
    page.locator("table.allocations, .empty").first.wait_for()
    if page.locator(".empty:visible").count():
        page.get_by_role("button", name="Solve the example").click()
    expect(page.locator("table.allocations tbody tr")).to_have_count(5)


def ask(page: Page, prompt: str, max_tokens: int, kind: str = "Chat") -> None:
    page.get_by_label(kind, exact=True).check()
    if not page.get_by_label("Max tokens").is_visible():
        page.get_by_text("Settings", exact=True).click()
    page.get_by_role("textbox", name="Prompt", exact=True).fill(prompt)
    page.get_by_label("Max tokens").fill(str(max_tokens))
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Send").click()


def answer_of(page: Page) -> Locator:
    """The last answer, with its text, its figures and what went wrong with it."""
    return page.locator(".turn[data-role=assistant]").last


def tab_to(page: Page, wanted: Locator) -> None:
    """By keyboard alone, as many stops as it takes."""
    for _ in range(20):
        page.keyboard.press("Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"twenty times Tab do not lead to {wanted}")
