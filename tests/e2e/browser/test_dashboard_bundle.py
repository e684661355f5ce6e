"""The experts of a bundle on the dashboard: what they do, and having them loaded and unloaded."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from lab.kit.servers import MOCK_APP, ServedApi, eventually
from tests.e2e.browser.pages import NARROW, WIDE, answer_of, ask, check_accessibility, opened
from tests.e2e.bundles import bundle_file, expert
from tests.forked import served

LONG_NAME = "sums-" + "with-a-name-as-long-as-anybody-has-ever-given-to-one-of-theirs" * 2
EXPERTS = [
    expert("general", pinned=True, description="cities, countries, animals, stories"),
    expert(LONG_NAME, "int8", description="numbers, plus, minus, times"),
    expert("plain", "none"),
]
ROW = {
    "request_id": None,
    "team_id": None,
    "phase": "decode",
    "prompt_tokens": 3,
    "cached_tokens": 3,
    "generated_tokens": 1,
    "token_limit": 9,
    "running_s": 1.0,
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    folder = tmp_path_factory.mktemp("bundle")
    file = bundle_file(folder, EXPERTS, fast_memory_limit="24MiB", router={})
    with served(folder / "log", BUNDLE=file, PACKED_FOLDER=folder / "packed") as api:
        yield api
        eventually(api.is_idle)


def card(page: Page, name: str) -> Locator:
    return page.locator(f'[data-expert="{name}"]')


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def test_every_expert_is_shown_with_its_state(api: ServedApi, browser: Browser) -> None:
    with opened(browser, api.url) as page:
        panel = page.get_by_role("region", name="Experts")
        expect(panel).to_contain_text("of 24 MiB in use")
        expect(page.locator("#server-model")).to_have_text("3 experts")
        expect(panel.locator("li")).to_have_count(3)
        expect(card(page, "general").locator(".pill")).to_have_text("resident")
        expect(card(page, "general")).to_contain_text(re.compile(r"Rows0 of 4.*Memory4\.\d+ MiB"))
        for name, weights in {"general": "int4", LONG_NAME: "int8", "plain": "bfloat16"}.items():
            facts = card(page, name).locator(".facts")
            expect(facts).to_contain_text(
                re.compile(rf"Devicecpu, \d+ threads?Kernels\w+Weights{weights}, [\d.]+ MiB")
            )
            expect(facts).to_contain_text(re.compile(r"KV cache(float32|int8), [\d.]+ MiB"))
            # One that is on disk has none.
            in_use = re.compile(r"Cache in use(–|\d+( \(\d+ cached\))? of [\d,]+ tokens)")
            expect(facts).to_contain_text(in_use)
        expect(page.get_by_role("region", name="Model")).to_be_hidden()
        expect(page.locator("#rows .cell")).to_have_count(32)
        check_accessibility(page, "#bundle")


def test_an_expert_is_loaded_and_unloaded_by_keyboard(api: ServedApi, browser: Browser) -> None:
    with opened(browser, api.url) as page:
        state = card(page, "plain").locator(".pill")
        button(page, "Load plain").focus()
        page.keyboard.press("Enter")
        expect(state).to_have_text("resident")
        expect(button(page, "Load plain")).to_be_focused()
        expect(card(page, "plain")).to_contain_text(re.compile(r"Switches[12]"))
        page.keyboard.press("Tab")
        expect(button(page, "Unload plain")).to_be_focused()
        page.keyboard.press("Enter")
        expect(state).to_have_text("on disk")
        expect(card(page, "plain")).to_contain_text("Memorynone")


def test_what_is_refused_is_told(api: ServedApi, browser: Browser) -> None:
    long_call = {"prompt": "A story.", "n": 32, "max_tokens": 240, "ignore_eos": True}
    with opened(browser, api.url, may_log="409") as page, ThreadPoolExecutor(1) as client:
        answer = client.submit(api.post, "/v1/completions", model="plain", **long_call)
        expect(card(page, "plain")).to_contain_text(re.compile("Rows[1-4] of 4"))
        button(page, "Unload plain").click()
        refusal = page.get_by_role("alert").filter(has_text="running")
        expect(refusal).to_have_text(re.compile(r"plain: \d running, \d+ waiting; drain it"))
        assert answer.result().status_code == 200
        button(page, "Load general").click()
        expect(refusal).to_be_hidden()
        expect(button(page, "Unload general")).to_have_count(0)  # it is pinned


def test_a_prompt_goes_to_the_expert_that_is_chosen_or_fits(
    api: ServedApi, browser: Browser
) -> None:
    with opened(browser, api.url) as page:
        models = page.get_by_role("combobox", name="Model")
        expect(models.locator("option")).to_have_text(["general", LONG_NAME, "plain", "auto"])
        answered = answer_of(page).locator("[data-figure=model]")
        models.select_option("plain")
        ask(page, "Hello", 4)
        expect(answered).to_have_text("plain")
        button(page, "New conversation").click()  # a router reads all turns
        models.select_option("auto")
        ask(page, "What is 3 plus 4 times 5?", 4)
        expect(answered).to_have_text(LONG_NAME)
        expect(models).to_have_value("auto")  # whatever the server says meanwhile


def test_row_stays_in_its_cell_while_others_end(api: ServedApi, browser: Browser) -> None:
    rows = [{**ROW, "session_id": name, "model": name} for name in ("general", "plain")]

    def with_rows(route: Route) -> None:
        state = route.fetch().json()
        route.fulfill(json={**state, "rows": rows + state["rows"][len(rows) :]})

    with opened(browser, api.url) as page:
        page.route("**/dashboard/state", with_rows)
        cells = page.locator(".cell")
        expect(cells.nth(1)).to_contain_text("plain")
        cells.nth(1).focus()
        expect(page.locator("#row-detail")).to_contain_text("model plain")
        del rows[0]
        expect(cells.nth(0)).to_contain_text("free")
        expect(cells.nth(1)).to_contain_text("plain")
        rows.append({**ROW, "session_id": "new", "model": "general"})
        expect(cells.nth(0)).to_contain_text("general")


def test_without_a_bundle_there_is_no_panel_and_rows_still_name_their_model(
    tmp_path: Path, browser: Browser
) -> None:
    models = json.dumps([{"model_name": "first"}, {"model_name": LONG_NAME}])
    slow = {"MOCK_TOKENS_PER_SECOND": 20, "USER_ROWS": 4}
    with (
        served(tmp_path / "log", MOCK_APP, MODELS=models, **slow) as api,
        opened(browser, api.url) as page,
        api.open_stream(text="x" * 900, max_tokens=900),
    ):
        expect(page.locator(".cell:not([data-phase=free])")).to_contain_text("first")
        expect(page.get_by_role("region", name="Experts")).to_be_hidden()
        models_offered = page.get_by_role("combobox", name="Model").locator("option")
        expect(models_offered).to_have_text(["first", LONG_NAME])
        for size in (WIDE, NARROW):
            page.set_viewport_size(size)
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_a_single_model_is_no_choice(mock_api: ServedApi, browser: Browser) -> None:
    with opened(browser, mock_api.url) as page:
        expect(page.locator("#server-phase")).to_have_text("ready")
        expect(page.get_by_role("combobox", name="Model")).to_be_hidden()
        expect(page.get_by_text("Answered by")).to_be_hidden()
