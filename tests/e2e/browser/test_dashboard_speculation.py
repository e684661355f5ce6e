"""What drafts bring, on the dashboard: of the models that draft, once they have."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from lab.kit.servers import MOCK_APP, ServedApi, eventually
from tests.e2e.browser.pages import check_accessibility, opened
from tests.forked import served

LONG_NAME = "a-model-with-a-name-as-long-as-anybody-has-ever-given-to-one-of-theirs"
MODELS = json.dumps([{"model_name": "idle", "user_rows": 8}, {"model_name": LONG_NAME}])


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    log_path = tmp_path_factory.mktemp("drafting") / "log"
    with served(log_path, MOCK_APP, SPECULATION="ngram", MODELS=MODELS) as api:
        yield api


def test_models_that_drafted_are_shown_with_what_it_brought(
    api: ServedApi, browser: Browser
) -> None:
    with opened(browser, api.url) as page:
        expect(page.locator("#server-phase")).to_have_text("ready")
        panel = page.get_by_role("region", name="Speculation")
        expect(panel).to_be_hidden()
        body = {"text": "a loop, a loop, a loop, a loop"}
        assert api.post(f"/inference/{LONG_NAME}", **body).text == body["text"]
        eventually(api.is_idle)
        totals = api.state()["totals"]
        share = round(100 * totals["accepted_tokens"] / totals["drafted_tokens"])
        expect(panel.locator("dl")).to_have_count(1)
        expect(panel.locator("dd").nth(0)).to_have_text(LONG_NAME)
        expect(panel.locator("dd").nth(1)).to_have_text(f"{share} %")
        expect(panel.locator("dd").nth(2)).to_have_text(re.compile(r"^[2-9](\.\d+)?$"))
        check_accessibility(page, "#speculation")
