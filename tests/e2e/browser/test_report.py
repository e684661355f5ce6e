"""A benchmark's report in real Chromium: narrow and wide, dark and light."""

from pathlib import Path

from playwright.sync_api import Browser

from benchmarking.analysis.goodput import Slo
from benchmarking.report.page import report_html
from tests.benchmarking.report.test_page import full_run
from tests.e2e.browser.pages import check_accessibility, opened


def test_it_is_accessible_and_fits(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report_html(full_run(), Slo(ttft_ms=30, itl_ms=5)), encoding="utf-8")
    with opened(browser, path.as_uri()) as page:
        check_accessibility(page)
        page.emulate_media(color_scheme="dark")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        picture = page.evaluate("getComputedStyle(document.querySelector('svg')).filter")
    assert ground == "rgb(22, 24, 28)"
    assert picture.startswith("invert(")
