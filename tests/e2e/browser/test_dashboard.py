"""The page in real Chromium, before real gunicorn: what it shows is what the server does.

`DASHBOARD_SCREENSHOT=docs/dashboard.png` renews the picture in the docs.
"""

import json
import os
import re
from pathlib import Path

import pytest
import requests
from playwright.sync_api import Browser, FloatRect, Page, Route, expect

from lab.kit.servers import TIMEOUT_S, ServedApi, eventually
from tests.e2e.browser.pages import TEAMS, answer_of, ask, busy, opened, show, solve_example

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "inference_api" / "watch" / "dashboard" / "example_system.json"
# Down to the rows and the conversation: what a page of the documentation has room for.
FIRST_SCREEN: FloatRect = {"x": 0, "y": 0, "width": 1280, "height": 890}


@pytest.fixture(scope="module")
def api(model_api: ServedApi) -> ServedApi:
    return model_api


def test_the_page_shows_the_server_and_what_its_model_runs_on(page: Page) -> None:
    expect(page.locator("#server-phase")).to_have_text("ready")
    expect(page.locator("#server-model")).to_have_text("hearth-tiny")
    expect(page.get_by_role("list", name="User rows").get_by_role("button")).to_have_count(32)
    expect(page.locator("#rows-summary")).to_contain_text("0 of 32 busy, 0 waiting")
    card = page.get_by_role("region", name="Model")
    for name, text in {
        "Family": r"^llama, [\d.]+ million parameters, 5 layers$",
        "Device": r"^cpu, 1 thread$",
        "Kernels": r"^\w+$",
        "Weights": r"^bfloat16, [\d.]+ MiB$",
        "KV cache": r"^float32, \d+ MiB$",
        "Context": r"^32 rows of 2,048 tokens$",
        "Cache in use": r"^\d[\d,]*( \(\d[\d,]* cached\))? of 65,536 tokens$",
        "Speculation": r"^off$",
        "Process": r"^\d[\d.,]* [MG]iB$",
    }.items():
        term = card.locator("div", has=page.get_by_text(name, exact=True))
        expect(term.last.locator("dd")).to_have_text(re.compile(text))
    expect(page.get_by_role("link", name="Cluster")).to_be_hidden()


def test_the_model_tells_what_its_cache_holds(api: ServedApi, page: Page) -> None:
    body = {"model": "hearth-tiny", "prompt": "Tell me of foxes. " * 9, "max_tokens": 5}
    usage = api.post("/v1/completions", **body, ignore_eos=True).json()["usage"]
    eventually(api.is_idle)
    held = api.get("/dashboard/state").json()["kv_cache"]["hearth-tiny"]
    assert held["held_pages"] == 0
    assert held["cached_pages"] + held["free_pages"] == 65_536 // held["page_tokens"]
    cached_tokens = held["cached_pages"] * held["page_tokens"]
    assert cached_tokens >= usage["total_tokens"] // held["page_tokens"] * held["page_tokens"] > 0
    use = page.get_by_role("region", name="Model").locator("div", has_text="Cache in use")
    expect(use.last).to_contain_text(
        f"{cached_tokens:,.0f} ({cached_tokens:,.0f} cached) of 65,536 tokens"
    )


def test_the_last_requests_come_by_themselves_in_the_order_asked_for(
    api: ServedApi, page: Page
) -> None:
    lines = page.locator("#requests-log tbody tr")
    expect(page.locator("#server-phase")).to_have_text("ready")
    for number, repeats in enumerate((9, 3, 6)):
        headers = {"X-Team-Id": "research", "X-Request-Id": f"ordered-{number}"}
        body = {"model": "hearth-tiny", "prompt": "word " * repeats, "max_tokens": 3}
        answer = requests.post(
            f"{api.url}/v1/completions", json=body, headers=headers, timeout=TIMEOUT_S
        )
        assert answer.status_code == 200
    expect(lines.first).to_contain_text("ordered-2")
    expect(lines.first).to_contain_text("research")
    expect(lines.first.locator("td[data-label=Tokens]")).to_contain_text(re.compile(r"\d+ → 3"))
    expect(lines.first.locator("td[data-label=TTFT]")).to_have_text(re.compile(r"^[\d.,]+ m?s$"))
    expect(lines.first.locator("td[data-label=End]")).to_contain_text("length200")
    page.get_by_label("Sort by").select_option("longest prompt")
    shown = page.locator("#requests-log td[data-label=Tokens]").all_inner_texts()
    prompts = [int(text.split()[0]) for text in shown if text[0].isdigit()]
    assert prompts == sorted(prompts, reverse=True)
    body = {"model": "hearth-tiny", "prompt": "x " * 4000, "max_tokens": 3}
    headers = {"X-Request-Id": "too-long"}
    refused = requests.post(
        f"{api.url}/v1/completions", json=body, headers=headers, timeout=TIMEOUT_S
    )
    assert refused.status_code == 400
    expect(lines.filter(has_text="too-long")).to_contain_text("context_length_exceeded")


def test_a_stream_that_breaks_is_told(page: Page) -> None:
    streams = {
        "It is too late.": 'data: {"error": {"message": "It is too late."}}\n\n',
        "The stream broke off before the answer was complete.": 'data: {"choices": []}\n\n',
    }
    bodies = iter(streams.values())
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=next(bodies)))
    for told in streams:
        ask(page, "Hello", 10)
        expect(answer_of(page).get_by_role("alert")).to_have_text(told)
        expect(answer_of(page).locator("[data-figure=finish]")).to_have_text("error")


def test_busy_rows_tell_whose_they_are(slow_api: ServedApi, browser: Browser) -> None:
    with opened(browser, slow_api.url) as page:
        with busy(slow_api, 32):
            expect_rows_to_tell(page)
        expect(page.locator("#rows-summary")).to_contain_text("0 of 32 busy")


def expect_rows_to_tell(page: Page) -> None:
    expect(page.locator("#rows-summary")).to_contain_text("32 of 32 busy")
    cell = page.locator(".cell[data-phase=decode]", has_text="request-6").first
    expect(cell).to_contain_text("research")
    expect(cell).to_contain_text(re.compile(r"\d+ → \d+"))
    expect(cell.locator(".rate")).to_have_text(re.compile(r"^[\d.,]+/s$"))
    cell.hover()
    detail = page.locator("#row-detail")
    expect(detail).to_contain_text("team research · request request-6 · session")
    expect(detail).to_contain_text("of at most")
    expect(page.locator(".chart", has_text="Inter-token latency")).to_contain_text("ms median")


def test_nothing_is_sent_or_copied_before_a_model_is_known(page: Page) -> None:
    held: list[Route] = []
    page.route("**/dashboard/state", lambda route: held.append(route))
    page.reload()
    names = ("Send", "Copy as curl", "Copy as Python", "What is the capital of Kenya?")
    buttons = [page.get_by_role("button", name=name) for name in names]
    for button in buttons:
        expect(button).to_be_disabled()
    for route in held:
        route.continue_()
    for button in buttons:
        expect(button).to_be_enabled()


def test_an_edited_load_is_solved_again(api: ServedApi, page: Page) -> None:
    solve_example(page)
    legend = page.locator("#optimizer-body .hint")
    for column in page.locator(".allocations thead th").all_inner_texts()[2:7]:
        expect(legend).to_contain_text(column)
    line = page.locator("tr[data-server=Premium-llama_70b]")
    allocation = line.locator("td[data-label=Allocation] .shape")
    before = allocation.inner_text()
    rate = line.get_by_label("Requests per minute")
    assert rate.input_value() == "150"
    rate.fill("400")
    rate.press("Enter")
    expect(page.locator("#optimizer-status")).to_contain_text("Solved: ")
    expect(allocation).not_to_have_text(before)
    expect(rate).to_be_focused()
    state = requests.get(f"{api.url}/state", timeout=TIMEOUT_S).json()["system"]
    (server,) = [
        each for each in state["serverData"]["servers"] if each["name"] == "Premium-llama_70b"
    ]
    assert server["currentAlloc"]["load"]["arrivalRate"] == 400
    given = server["desiredAlloc"]
    expect(allocation).to_have_text(f"{given['numReplicas']} × {given['accelerator']}")
    expect(line.locator("td[data-label=ITL]")).to_contain_text(f"{given['itlAverage']:.1f} of 80")
    assert line.locator("td[data-label=ITL] .slo.met").count() == 1


def test_a_solve_with_other_flags_and_its_reasons(page: Page) -> None:
    solve_example(page)
    page.get_by_label("Solver").select_option("Unlimited cards")
    page.get_by_role("button", name="Re-solve").click()
    expect(page.locator("#optimizer-body .figures.inline")).to_contain_text("unlimited")
    why = page.get_by_role("button", name="Why? Accelerators for Premium-llama_70b")
    why.click()
    expect(page.locator(".candidates .refused")).to_contain_text("no performance data")
    expect(page.locator(".candidates .feasible").first).to_contain_text("¢/h")
    reasons = page.locator(".whys dd")
    expect(reasons).to_have_count(3)
    expect(reasons.nth(0)).to_contain_text("it costs least, ")
    expect(reasons.nth(1)).to_contain_text(
        re.compile(r"^One replica handles \d+ requests/min, limited by its")
    )
    expect(reasons.nth(2)).to_contain_text("performance data allow for answers of 256 tokens")
    why.click()
    expect(page.locator(".candidates")).to_have_count(0)


def test_utilisation_and_power_are_there_after_a_reload(api: ServedApi, page: Page) -> None:
    system = json.loads(EXAMPLE.read_text())
    solved = requests.post(f"{api.url}/optimizeOne", json=system, timeout=TIMEOUT_S).json()
    page.reload()
    show(page, "optimizer")
    for name, details in solved["details"].items():
        cell = page.locator(f"tr[data-server={name}] td[data-label=Utilisation]")
        expect(cell).to_have_text(re.compile(rf"{100 * details['utilization']:.0f}\s%"))
    power_kw = solved["summary"]["totalPowerWatts"] / 1000
    shown = page.locator(".figures.inline div", has_text="Power").locator("dd")
    assert float(shown.inner_text().removesuffix(" kW")) == pytest.approx(power_kw, abs=0.1)


def test_why_names_the_cards_that_ran_out(api: ServedApi, page: Page) -> None:
    system = json.loads(EXAMPLE.read_text())
    scarce = json.loads(EXAMPLE.read_text())
    scarce["system"]["capacityData"]["count"] = [
        {"type": "A100", "count": 24}, {"type": "G2", "count": 12},
    ]  # fmt: skip
    try:
        solved = requests.post(f"{api.url}/optimizeOne", json=scarce, timeout=TIMEOUT_S).json()
        cheap = [name for name, a in solved["allocations"].items() if a["accelerator"] == "G2"]
        assert cheap
        assert "Standard-granite_13b" not in cheap
        show(page, "optimizer")
        page.get_by_role("button", name="Why? Accelerators for Standard-granite_13b").click()
        told = page.locator(".candidates .refused", has_text="G2")
        expect(told).to_contain_text(
            "not enough cards left: it needs 5 of type G2, the other servers leave 1 of 12"
        )
        expect(told).to_contain_text("¢/h")
        expect(page.locator(".whys dd").first).to_contain_text("G2 would cost ")
    finally:
        requests.post(f"{api.url}/optimizeOne", json=system, timeout=TIMEOUT_S)


def test_a_missed_service_level_is_said_in_words(page: Page) -> None:
    solve_example(page)
    page.get_by_label("Solver").select_option("Greedy")
    rate = page.get_by_label("Requests per minute, Premium-granite_13b")
    rate.fill("900000")
    rate.press("Enter")
    cell = page.locator("tr[data-server=Premium-granite_13b] td[data-label=TTFT]")
    expect(cell).to_contain_text("missed")
    rate.fill("900")
    rate.press("Enter")
    expect(cell).not_to_contain_text("missed")


def test_a_search_appears_and_moves_on(api: ServedApi, page: Page) -> None:
    show(page, "weights")
    expect(page.locator("#weights-body")).to_contain_text("No search yet")
    tell(api, "two machines", [(0.5, 10.0), (0.7, 14.0), (0.6, 12.0)])
    tell(api, "ring/of two", [(0.5, 3.0)])
    page.reload()
    page.get_by_role("link", name="two machines 2 nodes, 3 trials").click()
    detail = page.locator("section[aria-labelledby=session-title]")
    expect(detail).to_contain_text("Best single trial14maximized")
    best = requests.get(f"{api.url}/weights/sessions/two machines", timeout=TIMEOUT_S).json()
    share = round(100 * best["noise_aware_best"]["weights"][0])
    expect(detail.locator(".nodes tbody tr").first).to_contain_text(f"{share} %")
    chart = detail.get_by_role("img", name="3 trials, values from 10 to 14, best so far 14")
    expect(chart).to_be_visible()
    # What is told elsewhere appears by itself.
    tell(api, "two machines", [(0.8, 16.0)])
    expect(detail.get_by_role("img", name="4 trials")).to_be_visible()
    page.get_by_role("link", name="ring/of two").click()
    expect(detail.locator("h2")).to_have_text("ring/of two")
    page.reload()
    expect(detail.locator("h2")).to_have_text("ring/of two")


def tell(api: ServedApi, session_id: str, trials: list[tuple[float, float]]) -> None:
    """Trials of two nodes: the first one's share, and what was measured."""
    for share, metric in trials:
        told = api.post(
            "/weights_update",
            session_id=session_id,
            number_of_nodes=2,
            weights=[share, 1 - share],
            max_weightings=[0.9, 0.9],
            performance_metric=metric,
        )
        assert told.status_code == 200


def test_a_hidden_tab_asks_for_nothing(api: ServedApi, browser: Browser) -> None:
    page = browser.new_page()  # its clock stays with it
    asked: list[str] = []
    page.on("request", lambda sent: asked.append(sent.url))
    page.clock.install()
    page.goto(api.url)
    expect(page.locator("#server-phase")).to_have_text("ready")
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.clock.run_for(5_000)
    so_far = list(asked)
    page.clock.run_for(60_000)
    assert asked == so_far
    with page.expect_request("**/dashboard/state"):
        page.evaluate("delete document.hidden")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.close()


def test_pure_modules(page: Page) -> None:
    """What the figures are made of, on numbers worked out by hand."""
    load = "document.querySelector('script[type=module]').src.replace('app.js', '%s')"
    calls = [
        ("history.js", "quantile([[1, 0], [2, 4], [4, 8], [null, 8]], 0.5)", 2),
        ("history.js", "quantile([[1, 0], [2, 4], [4, 8], [null, 8]], 0.75)", 3),
        ("history.js", "quantile([[1, 2], [null, 8]], 0.95)", 1),
        ("history.js", "quantile([[1, 0], [null, 0]], 0.5)", None),
        ("chart.js", "niceCeiling(0)", 0),
        ("chart.js", "niceCeiling(21)", 50),
        ("chart.js", "niceCeiling(100)", 100),
        ("format.js", "duration(0.0123)", "12.3 ms"),
        ("format.js", "duration(2.5)", "2.5 s"),
        ("format.js", "number(1234.5)", "1,235"),
        ("format.js", "count(1, 'token')", "1 token"),
        (
            "requests.js",
            "ordered([{ttft_ms: 2}, {ttft_ms: null}, {ttft_ms: 9}], 'ttft').map((r) => r.ttft_ms)",
            [9, 2, None],
        ),
    ]
    for name, call, result in calls:
        assert page.evaluate(f"async () => (await import({load % name})).{call}") == result
    # An event may come in pieces, and two in one.
    parts = ["data: o", "ne\n\ndata: two\n\nda", "ta: thr", "ee\n\n"]
    texts = page.evaluate(
        f"""async (parts) => {{
            const {{ events }} = await import({load % "sse.js"});
            const stream = new ReadableStream({{
              start(controller) {{
                for (const part of parts) controller.enqueue(new TextEncoder().encode(part));
                controller.close();
              }},
            }});
            const texts = [];
            for await (const text of events(new Response(stream))) texts.push(text);
            return texts;
        }}""",
        parts,
    )
    assert texts == ["one", "two", "three"]


def test_a_picture_for_the_documentation(
    slow_api: ServedApi, browser: Browser, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    wanted = os.environ.get("DASHBOARD_SCREENSHOT")
    path = Path(wanted or tmp_path / "dashboard.png")
    # The mock's rows stay busy however slow the page is; the embedded model's look better.
    api = request.getfixturevalue("api") if wanted else slow_api
    with opened(browser, api.url) as page:
        while wanted and page.locator(".span").first.inner_text() < "last 30 s":  # some history
            with busy(api, 21):
                api.post("/inference", text="Tell me a story.", max_tokens=600, stop_sequence="@@")
        with busy(api, 21):
            for team, place in zip(TEAMS, ("Kenya", "France", "Peru", "Japan"), strict=True):
                ask_api(api, team, f"What is the capital of {place}?")
            expect(page.locator(".cell[data-phase=decode]")).to_have_count(21)
            ask(page, "Tell me a story about a fox.", 120)
            expect(page.locator("[data-figure=finish]")).to_have_text(re.compile("stop|length"))
            page.get_by_text("Settings", exact=True).click()
            expect(page.locator("#requests-log")).to_contain_text("ask-docs-bot")
            page.locator(".cell").nth(6).hover()
            page.screenshot(path=path, full_page=True, clip=FIRST_SCREEN)
    assert 20_000 < path.stat().st_size < 300_000


def ask_api(api: ServedApi, team: str, question: str) -> None:
    messages = [{"role": "user", "content": question}]
    body = {"model": "hearth-tiny", "messages": messages, "temperature": 0, "max_tokens": 8}
    who = {"X-Team-Id": team, "X-Request-Id": f"ask-{team}"}
    answer = requests.post(
        f"{api.url}/v1/chat/completions", json=body, headers=who, timeout=TIMEOUT_S
    )
    assert answer.status_code == 200
