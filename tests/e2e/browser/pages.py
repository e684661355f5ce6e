"""What the tests of the dashboard do with its page, in real Chromium.

Every page is watched: whatever it logs as an error, and whatever it asks of another host, fails
the test it happened in.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Literal
from urllib.parse import urlsplit

import requests
from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

from lab.kit.servers import TIMEOUT_S, ServedApi, eventually

CHROMIUM = shutil.which("chromium")  # None: the one that Playwright has installed
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
Scheme = Literal["dark", "light"]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# A scheme changes colours alone, and a width none.
LOOKS: tuple[tuple[ViewportSize, Scheme], ...] = ((NARROW, "dark"), (WIDE, "light"))
AXE_OPTIONS = {"runOnly": RULES, "resultTypes": ["violations"]}
RUN_AXE = "([of, options]) => axe.run(of, options).then(({violations}) => ({violations}))"
BLANK = "about:blank"
TIMEOUT_MS = 1000 * TIMEOUT_S

expect.set_options(timeout=TIMEOUT_MS)


@contextmanager
def opened(
    browser: Browser,
    url: str,
    may_log: str = "^$",
    viewport: ViewportSize = WIDE,
) -> Iterator[Page]:
    """A page of its own, watched for errors and for requests that leave its origin.

    What matches `may_log` is expected: browsers log every answer of 400 and above.
    """
    page = _blank_page(browser)
    page.set_viewport_size(viewport)
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    with _watched(page) as (lines, asked):
        page.goto(url)
        yield page
        _leave(page)
    errors = [line for line in lines if line.startswith("error")]
    assert [error for error in errors if not re.search(may_log, error)] == []
    own = f"{urlsplit(url).scheme}://{urlsplit(url).netloc}/"
    assert asked
    assert [each for each in asked if not each.startswith((own, "data:"))] == []


def _blank_page(browser: Browser) -> Page:
    """One that has been left, or a new one: its process takes a second of a processor."""
    for context in browser.contexts:
        for page in context.pages:
            if page.url == BLANK:
                return page
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    return page


@contextmanager
def _watched(page: Page) -> Iterator[tuple[list[str], list[str]]]:
    """What the page logs, and the addresses it asks for."""
    lines: list[str] = []
    asked: list[str] = []
    listeners: list[tuple[Any, Callable[[Any], None]]] = [
        ("console", lambda line: lines.append(f"{line.type}: {line.text}")),
        ("pageerror", lambda error: lines.append(f"error: {error}")),
        ("request", lambda sent: asked.append(sent.url)),
    ]
    for event, listener in listeners:
        page.on(event, listener)
    yield lines, asked
    for event, listener in listeners:
        page.remove_listener(event, listener)


def _leave(page: Page) -> None:
    """Nothing of this test is there for the next one. A test that fails leaves no page to it."""
    page.unroute_all(behavior="ignoreErrors")
    page.evaluate("sessionStorage.clear()")
    page.context.clear_cookies()
    page.context.clear_permissions()
    page.mouse.move(0, 0)
    page.goto(BLANK)


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
            f"{api.url}/v1/completions", json=body, headers=who, stream=True, timeout=TIMEOUT_S
        )

    with ExitStack() as stack, ThreadPoolExecutor(num_rows) as pool:
        for answer in pool.map(stream, range(num_rows)):
            stack.enter_context(answer)
        yield
    eventually(api.is_idle)


def show(page: Page, view: str) -> None:
    page.get_by_role("link", name=view.capitalize()).click()
    expect(page.locator(f"#view-{view}")).to_be_visible()


def check_accessibility(page: Page, of: str = "html") -> None:
    """Axe finds nothing `of` the page, and nothing needs scrolling sideways: narrow in the dark,
    and wide in the light.

    The views are checked whole by `test_dashboard_access`; what other tests bring to one, alone.
    """
    page.evaluate(AXE_SCRIPT)
    for size, scheme in LOOKS:
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found = AxeResults(page.evaluate(RUN_AXE, [of, AXE_OPTIONS]))
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
