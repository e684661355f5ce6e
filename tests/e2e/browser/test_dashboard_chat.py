"""The dashboard's conversation: turns, settings, Markdown, copies, and all of it by keyboard."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser, Locator, Page, Route, expect

from lab.kit.servers import TIMEOUT_S, ServedApi, eventually
from tests.e2e.browser.pages import NARROW, answer_of, ask, check_accessibility, opened, tab_to

EXAMPLES = {  # of the embedded model: what its answers are about
    "Have you been to Paris, France?": "I am a language model, so I have never been to Paris",
    "What is the capital of Kenya?": "The capital of Kenya is Nairobi.",
    "Write a Python function that adds two numbers.": "def add(a, b):\n    return a + b",
    "How do I make a cup of tea?": "Pour the hot water over the tea bag.",
}
ROUTE = "**/v1/chat/completions"
STATE = "**/dashboard/state"
AWAY = 'rel="noopener noreferrer" target="_blank"'
MARKDOWN = """# Two *steps*

Some **bold**, `code` and a [link](https://example.org/a?b=1).

1. First:
   ```python
   print("<b>one</b>")
   ```

2. Second
   - inner
   - [wrong](javascript:alert(1))

<script>globalThis.wasRun = 1</script> <img src=x onerror="globalThis.wasRun = 1">"""


@pytest.fixture(scope="module")
def api(model_api: ServedApi) -> ServedApi:
    return model_api


def answer_with(page: Page, text: str) -> list[Any]:
    """Every request from now on gets this answer; returns the bodies of the requests."""
    bodies: list[Any] = []

    def fulfill(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        chunks = [{"choices": [{"delta": {"content": piece}}], "model": "m"} for piece in text]
        chunks += [{"choices": [{"delta": {}, "finish_reason": "stop"}], "model": "m"}]
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        route.fulfill(body="".join(events) + "data: [DONE]\n\n")

    page.route(ROUTE, fulfill)
    return bodies


def said(page: Page) -> list[str]:
    return page.locator(".said, .turn .answer").all_inner_texts()


def press_enter(page: Page, text: str) -> Locator:
    """Returns the prompt, with this text and Enter pressed."""
    prompt = page.get_by_role("textbox", name="Prompt", exact=True)
    prompt.fill(text)
    # The page sends nothing until it knows the models. Clicks wait for the button, keys do not.
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled()
    prompt.press("Enter")
    return prompt


def ask_by_enter(page: Page, text: str) -> None:
    prompt = press_enter(page, text)
    expect(prompt).to_have_value("")
    expect(answer_of(page).locator("[data-figure=finish]")).not_to_have_text("–")


def test_an_answer_is_timed_and_a_second_question_sends_it_along(page: Page) -> None:
    page.get_by_text("Settings", exact=True).click()
    page.get_by_label("System prompt").fill("You are brief.")
    page.get_by_label("Top-p").fill("0.9")
    page.get_by_label("Seed").fill("7")
    ask(page, "What is the capital of Kenya?", 60)
    expect(answer_of(page)).to_contain_text("Nairobi")
    figures = answer_of(page)
    expect(figures.locator("[data-figure=finish]")).to_have_text("stop")
    expect(figures.locator("[data-figure=ttft]")).to_have_text(re.compile(r"^[\d.,]+ m?s$"))
    expect(figures.locator("[data-figure=rate]")).to_have_text(re.compile(r"^[\d.,]+$"))
    tokens = int(figures.locator("[data-figure=tokens]").inner_text())
    assert 3 < tokens <= 60
    expect(page.locator("#playground-status")).to_contain_text(f"{tokens} tokens")
    expect(page.locator(".chart").first).to_contain_text("tokens/s")
    first = answer_of(page).locator(".answer").inner_text()
    with page.expect_request(ROUTE) as sent:
        ask(page, "And of France?", 60)
    body: Any = sent.value.post_data_json
    assert body["messages"] == [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "What is the capital of Kenya?"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "And of France?"},
    ]
    settings = ("max_tokens", "temperature", "top_p", "seed")
    assert [body[name] for name in settings] == [60, 0, 0.9, 7]
    expect(page.locator(".turn")).to_have_count(4)
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.get_by_role("button", name="Have you been to Paris, France?")).to_be_visible()


def test_the_embedded_model_answers_its_examples_and_may_do_so_again(page: Page) -> None:
    page.get_by_text("Settings", exact=True).click()
    page.get_by_label("Temperature").fill("0")
    for example, answer in EXAMPLES.items():
        page.get_by_role("button", name="New conversation").click()
        page.get_by_role("button", name=example).click()
        expect(answer_of(page).locator("[data-figure=finish]")).to_have_text("stop")
        expect(page.get_by_role("button", name="Have you been")).to_be_hidden()
        assert answer in answer_of(page).locator(".answer").inner_text()
    bodies = answer_with(page, "Another one.")
    page.get_by_role("button", name="Regenerate").click()
    expect(answer_of(page).locator(".answer")).to_have_text("Another one.")
    assert said(page) == [example, "Another one."]
    assert [len(body["messages"]) for body in bodies] == [1]


def test_another_model_has_other_examples(page: Page) -> None:
    def with_another(route: Route) -> None:
        state = route.fetch().json()
        state["server"]["models"].append("another")
        route.fulfill(json=state)

    examples = page.locator("#playground-examples button:visible")
    expect(examples).to_have_text(list(EXAMPLES))
    page.route(STATE, with_another)
    page.get_by_role("combobox", name="Model").select_option("another")
    expect(examples.first).to_have_text("Explain how a rainbow forms.")
    assert not {*examples.all_inner_texts()} & {*EXAMPLES}
    page.get_by_role("combobox", name="Model").select_option("hearth-tiny")
    expect(examples).to_have_text(list(EXAMPLES))


def test_what_is_refused_is_told_and_not_sent_again(api: ServedApi, browser: Browser) -> None:
    with opened(browser, api.url, may_log="status of 400") as page:
        ask_by_enter(page, "x " * 4000)
        told = "maximum context length is 2048 tokens"
        expect(answer_of(page).get_by_role("alert")).to_contain_text(told)
        expect(page.locator("[data-figure=finish]")).to_have_text("error")
        bodies = answer_with(page, "Yes.")
        ask_by_enter(page, "Are you there?")
        assert bodies[0]["messages"] == [{"role": "user", "content": "Are you there?"}]


def test_stopping_frees_the_row_and_the_part_is_kept(slow_api: ServedApi, browser: Browser) -> None:
    with opened(browser, slow_api.url) as page:
        ask(page, "Tell me a story. " * 50, 900)
        expect(answer_of(page).locator(".answer")).to_contain_text("story")
        page.get_by_role("button", name="Stop").click()
        expect(answer_of(page).locator("[data-figure=finish]")).to_have_text("stopped")
        eventually(slow_api.is_idle)
        part = answer_of(page).locator(".answer").inner_text()
        bodies = answer_with(page, "Done.")
        ask_by_enter(page, "Go on.")
        assert bodies[0]["messages"][1]["content"].strip() == part.strip()


def test_a_new_conversation_ends_the_answer_that_streams(
    slow_api: ServedApi, browser: Browser
) -> None:
    with opened(browser, slow_api.url) as page:
        ask(page, "Tell me a story. " * 50, 900)
        expect(answer_of(page).locator(".answer")).to_contain_text("story")
        page.get_by_role("button", name="New conversation").click()
        eventually(slow_api.is_idle)
        expect(page.locator(".turn")).to_have_count(0)
        expect(page.get_by_role("button", name="Send")).to_be_enabled()


@pytest.fixture(scope="module")
def reader(api: ServedApi, browser: Browser) -> Iterator[Page]:
    """A page for those that change nothing on it."""
    with opened(browser, api.url) as page:
        yield page


def test_markdown_becomes_elements_and_nothing_else(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer_with(page, MARKDOWN)
    ask_by_enter(page, "<b>Hello</b>")
    assert said(page)[0] == "<b>Hello</b>"
    shown = answer_of(page).locator(".answer")
    expect(shown.locator("h3")).to_have_text("Two steps")
    expect(shown.locator("h3 em")).to_have_text("steps")
    expect(shown.locator("strong")).to_have_text("bold")
    expect(shown.locator("p > code")).to_have_text("code")
    expect(shown.locator("ol > li")).to_have_count(2)
    expect(shown.locator("ol > li > ul > li")).to_have_text(
        ["inner", "[wrong](javascript:alert(1))"]
    )
    expect(shown.locator("a")).to_have_attribute("href", "https://example.org/a?b=1")
    expect(shown.locator("script, img, b")).to_have_count(0)
    expect(shown.locator("> p").last).to_have_text(MARKDOWN.splitlines()[-1])
    assert page.evaluate("globalThis.wasRun") is None
    shown.get_by_role("button", name="Copy code").click()
    expect(shown.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == 'print("<b>one</b>")'


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a_b_c 2*3*4 **", "<p>a_b_c 2<em>3</em>4 **</p>"),
        ("**a *b* c** __d__", "<p><strong>a <em>b</em> c</strong> <strong>d</strong></p>"),
        ("_e_ ** f", "<p><em>e</em> ** f</p>"),
        (r"\*no\* ``a`` `**`", "<p>*no* <code>a</code> <code>**</code></p>"),
        ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
        ("So:\n3. a\n\n4. b\nend", '<p>So:</p><ol start="3"><li>a</li><li>b</li></ol><p>end</p>'),
        ("1. a\n  - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"),
        ("- a\n    - b\n* c", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"),
        ("#no\n####### no", "<p>#no\n####### no</p>"),
        ("[a](data:text/html,x) [b](//x.y)", "<p>[a](data:text/html,x) [b](//x.y)</p>"),
        ("[c](http://[) [d](Java&#115;cript:x)", "<p>[c](http://[) [d](Java&amp;#115;cript:x)</p>"),
        ("[*c*](HTTP://x.y)", f'<p><a href="HTTP://x.y" {AWAY}><em>c</em></a></p>'),
    ],
)  # fmt: skip
def test_markdown_of_every_kind(reader: Page, text: str, html: str) -> None:
    assert rendered(reader, text) == html


def rendered(page: Page, text: str) -> Any:
    return page.evaluate(
        """async (text) => {
            const from = document.querySelector('script[type=module]').src;
            const { blocksOf, elementOf } = await import(from.replace('app.js', 'markdown.js'));
            return blocksOf(text).map((block) => elementOf(block).outerHTML).join('');
        }""",
        text,
    )


@pytest.mark.parametrize(
    "piece",
    ["*", "**a ", "`", "``` ", "[", "[a](", "_a ", "# ", " ", "1. a\n", "  - a\n\n", "**a*b"],
)  # fmt: skip
def test_no_text_takes_long(reader: Page, piece: str) -> None:
    for text in (piece * 50_000, "# " + piece * 50_000 + "`x"):
        assert isinstance(rendered(reader, text), str)


def test_lists_may_be_deeper_than_any_page_shows(reader: Page) -> None:
    deep = "".join("  " * depth + "- a\n" for depth in range(500))
    assert rendered(reader, deep).count("<ul>") == 8
    assert rendered(reader, "- " * 5000).count("<ul>") <= 8


def test_a_conversation_copies_as_curl_and_as_python_that_work(api: ServedApi, page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "What is the capital of Kenya?", 60)
    expect(answer_of(page).locator("[data-figure=finish]")).to_have_text("stop")
    prompt = page.get_by_role("textbox", name="Prompt", exact=True)
    prompt.fill('It\'s in "Africa"?\n\\ $HOME é 🦊')
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.locator("#playground-curl")).to_have_text("Copied")
    words = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    assert words[:3] == ["curl", "-N", f"{api.url}/v1/chat/completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert requests.post(words[2], json=body, timeout=TIMEOUT_S).text.endswith("data: [DONE]\n\n")
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][2]["content"] == prompt.input_value()
    told = requests.post(words[2], json={**body, "stream": False}, timeout=TIMEOUT_S).json()
    page.get_by_role("button", name="Copy as Python").click()
    expect(page.locator("#playground-python")).to_have_text("Copied")
    script = page.evaluate("navigator.clipboard.readText()")
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.stderr == ""
    assert ran.stdout == told["choices"][0]["message"]["content"]
    # Without a prompt it is the request of the last answer.
    prompt.fill("")
    page.get_by_label("Bare text").check()
    with page.expect_request("**/v1/completions") as sent:
        ask(page, "What is", 2, "Bare text")
    asked: Any = sent.value.post_data_json
    assert asked["prompt"] == "What is"
    expect(answer_of(page).locator("[data-figure=finish]")).to_have_text("length")
    expect(page.locator("#playground-python")).to_have_text("Copy as Python")
    page.get_by_role("button", name="Copy as Python").click()
    expect(page.locator("#playground-python")).to_have_text("Copied")
    script = page.evaluate("navigator.clipboard.readText()")
    assert "client.completions.create(" in script
    assert '    prompt="What is",' in script


def test_where_there_is_no_clipboard_the_text_is_shown_selected(page: Page) -> None:
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.get_by_role("textbox", name="Prompt", exact=True).fill("Hello")
    page.get_by_role("button", name="Copy as Python").click()
    shown = page.locator("#playground-copied")
    expect(shown).to_contain_text("from openai import OpenAI")
    assert page.evaluate("getSelection().toString()").strip() == shown.inner_text().strip()


def test_settings_out_of_bounds_are_opened_and_told(page: Page) -> None:
    page.get_by_text("Settings", exact=True).click()
    page.get_by_label("Top-p").fill("2")
    page.get_by_text("Settings", exact=True).click()
    expect(page.get_by_label("Top-p")).to_be_hidden()
    prompt = press_enter(page, "Hello")
    expect(page.get_by_label("Top-p")).to_be_focused()
    expect(page.locator(".turn")).to_have_count(0)
    expect(prompt).to_have_value("Hello")


def test_a_conversation_by_keyboard_alone(slow_api: ServedApi, browser: Browser) -> None:
    with opened(browser, slow_api.url) as page:
        tab_to(page, page.get_by_role("textbox", name="Prompt", exact=True))
        page.keyboard.type("One")
        page.keyboard.press("Shift+Enter")
        page.keyboard.insert_text("two " * 40)
        page.keyboard.press("Enter")
        expect(page.locator(".said")).to_have_text("One\n" + "two " * 40, use_inner_text=True)
        expect(answer_of(page).locator(".answer")).to_contain_text("two")
        page.keyboard.press("Escape")
        finish = answer_of(page).locator("[data-figure=finish]")
        expect(finish).to_have_text("stopped")
        tab_to(page, page.get_by_role("button", name="Regenerate"))
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Stop")).to_be_focused()
        page.keyboard.press("Enter")
        expect(finish).to_have_text("stopped")
        expect(page.get_by_role("button", name="Send")).to_be_focused()


def test_a_conversation_breaks_no_rule_of_accessibility(api: ServedApi, page: Page) -> None:
    expect(page.locator("#server-phase")).to_have_text("ready")
    answer_with(page, MARKDOWN + "\n\n" + "long" * 200 + "\n```\n" + "wide " * 100)
    page.get_by_text("Settings", exact=True).click()
    for text in ("Hello", "word" * 100):
        ask_by_enter(page, text)
    check_accessibility(page, "#playground-panel")


def test_on_a_phone_the_conversation_comes_first(api: ServedApi, browser: Browser) -> None:
    with opened(browser, api.url, viewport=NARROW) as page:
        expect(page.locator("#server-phase")).to_have_text("ready")
        send = page.get_by_role("button", name="Send").bounding_box()
        rows = page.get_by_role("region", name="User rows").bounding_box()
        assert send is not None
        assert rows is not None
        assert send["y"] + send["height"] < NARROW["height"] < rows["y"]
