"""Web pages of others, in real Chromium: what they cannot do, and what CORS_ORIGINS lets them do;
and the dashboard through the proxy, after its login."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser, Page, expect

from lab.kit.servers import MOCK_APP, TIMEOUT_S, ServedApi
from tests.e2e.browser.pages import answer_of, ask, check_accessibility, opened, show
from tests.forked import served
from tests.ports import free_port
from tests.proxy.support import ProxyProcess, bearer, make_token, running_proxy, until

# What a page can try without being asked first: no headers of its own, a body of plain text.
SILENTLY = "fetch(%s, {method: %s, mode: 'no-cors', body: %s}).then(() => 'sent', () => 'failed')"
READ = "fetch(%s).then(answer => answer.text(), () => 'unreadable')"
CHAT = """async ([url, token]) => {
    const headers = {'Content-Type': 'application/json', 'X-Stainless-Lang': 'js'};
    if (token) headers.Authorization = `Bearer ${token}`;
    const body = {model: 'hearth-tiny', stream: true, max_tokens: 5,
                  messages: [{role: 'user', content: 'hello'}]};
    const answer = await fetch(url + '/v1/chat/completions',
                               {method: 'POST', headers, body: JSON.stringify(body)});
    let text = '';
    const decoder = new TextDecoder();
    for await (const piece of answer.body) text += decoder.decode(piece, {stream: true});
    return [answer.status, text, answer.headers.get('X-Request-Id')];
}"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextmanager
def site(folder: Path, port: int) -> Iterator[str]:
    """A web site of somebody else."""
    (folder / "index.html").write_text("<!doctype html><title>Elsewhere</title>")
    server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever, name="site")
    thread.start()
    try:
        yield f"http://localhost:{port}"  # another site than 127.0.0.1's
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with site(tmp_path_factory.mktemp("listed"), free_port()) as origin:
        yield origin


@pytest.fixture(scope="module")
def unlisted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with site(tmp_path_factory.mktemp("unlisted"), free_port()) as origin:
        yield origin


@pytest.fixture(scope="module")
def api(listed: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    folder = tmp_path_factory.mktemp("api")
    settings: dict[str, Any] = {"CORS_ORIGINS": listed, "OPTIMIZER_STATEFUL": "true"}
    settings["OPTIMIZER_STORE_PATH"] = str(folder / "optimizer.db")
    with served(folder / "log", MOCK_APP, **settings) as api:
        yield api


@pytest.fixture(scope="module")
def proxy(
    api: ServedApi, listed: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    with running_proxy(tmp_path_factory.mktemp("proxy"), api.url, CORS_ORIGINS=listed) as process:
        yield process


@contextmanager
def visiting(browser: Browser, origin: str) -> Iterator[Page]:
    context = browser.new_context()
    page = context.new_page()
    page.goto(origin)
    yield page
    context.close()


def test_page_of_another_origin_changes_and_reads_nothing(
    api: ServedApi, browser: Browser, unlisted: str
) -> None:
    capacity = {"type": "A100", "count": 7}
    requests.post(f"{api.url}/setCapacity", json=capacity, timeout=TIMEOUT_S).raise_for_status()
    with visiting(browser, unlisted) as page:

        def silently(path: str, method: str = "POST", body: str | None = "{}") -> None:
            url = json.dumps(api.url + path)
            page.evaluate(SILENTLY % (url, json.dumps(method), json.dumps(body)))

        silently("/drain")
        silently("/drain", body=None)
        silently("/setCapacity", body='{"type": "A100", "count": 0}')
        silently("/removeCapacity/A100", "GET", None)
        page.evaluate(
            "url => new Promise(done => { const image = new Image();"
            "image.onload = image.onerror = done; image.src = url; }).then(() => null)",
            f"{api.url}/removeCapacity/A100",
        )
        for path in ("/dashboard/state", "/state", "/metrics", "/v1/models"):
            assert page.evaluate(READ % json.dumps(api.url + path)) == "unreadable"
        page.goto(f"{api.url}/removeCapacity/A100")  # as by a link
        expect(page.locator("body")).to_contain_text("origin_not_allowed")
    assert api.state()["status"] == "ready"
    kept = requests.get(f"{api.url}/getCapacity/A100", timeout=TIMEOUT_S)
    assert kept.json() == capacity


def test_listed_page_chats_with_streams_and_reads_refusals(
    api: ServedApi, proxy: ProxyProcess, browser: Browser, listed: str, unlisted: str
) -> None:
    token = make_token(role="team")
    with visiting(browser, listed) as page:
        for url, given in ((api.url, None), (proxy.url, token)):
            status, text, request_id = page.evaluate(CHAT, [url, given])
            assert (status, "data: [DONE]" in text, bool(request_id)) == (200, True, True)
        status, text, _ = page.evaluate(CHAT, [proxy.url, "no token"])
        assert (status, json.loads(text)["error"]["code"]) == (401, "unauthorized")
    with visiting(browser, unlisted) as page:
        for url in (api.url, proxy.url):
            with pytest.raises(Exception, match="Failed to fetch"):
                page.evaluate(CHAT, [url, token])


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Bearer token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_viewer_sees_the_dashboard_through_the_proxy(proxy: ProxyProcess, browser: Browser) -> None:
    with opened(browser, proxy.url + "/", "status of 40[13]") as page:
        expect(page).to_have_url(f"{proxy.url}/login")
        check_accessibility(page)
        log_in(page, "no token")
        expect(page.get_by_role("alert")).to_have_text("The proxy refused this token.")
        check_accessibility(page)
        log_in(page, make_token(role="team"))
        expect(page.get_by_role("alert")).to_contain_text("needs the role viewer")
        log_in(page, make_token(role="viewer", team_id="watchers"))
        expect(page).to_have_url(re.compile(rf"^{proxy.url}/(#.*)?$"))
        expect(page.locator("#server-phase")).to_have_text("ready")
        ask(page, "hello", 5)
        expect(answer_of(page)).to_contain_text("User:")
        (cookie,) = page.context.cookies()
        assert (cookie["name"], cookie["httpOnly"]) == ("hearth_token", True)
        assert (cookie["sameSite"], cookie["path"]) == ("Strict", "/")
        assert page.evaluate("[document.cookie, sessionStorage.length]") == ["", 0]
        show(page, "weights")
        show(page, "optimizer")
        page.locator("table.allocations, .empty").first.wait_for()
        status = "fetch('/setCapacity', {method: 'POST'}).then(answer => answer.status)"
        assert page.evaluate(status) == 403, "a viewer changes nothing"
        page.goto(f"{proxy.url}/logout")
        expect(page).to_have_url(f"{proxy.url}/login")
        assert page.context.cookies() == []


def test_operators_cookie_serves_no_page_but_the_proxys(
    proxy: ProxyProcess, api: ServedApi, browser: Browser, unlisted: str
) -> None:
    """Of another port of the same host, which cookies do not tell apart."""
    own = proxy.url.replace("127.0.0.1", "localhost")
    changed = f"{own}/setCapacity"
    with visiting(browser, own) as page:
        log_in(page, make_token(role="operator"))
        expect(page.locator("#server-phase")).to_have_text("ready")
        post = "url => fetch(url, {method: 'POST', headers: {'Content-Type': 'application/json'},"
        post += "body: JSON.stringify({type: 'H100', count: 3})}).then(answer => answer.status)"
        assert page.evaluate(post, changed) == 200
        page.goto(unlisted)
        for method in ("POST", "GET"):
            url = changed if method == "POST" else f"{own}/removeCapacity/H100"
            body = '{"type": "H100", "count": 0}' if method == "POST" else None
            page.evaluate(
                "([url, method, body]) => fetch(url, {method, body, mode: 'no-cors',"
                " credentials: 'include'}).then(() => null, () => null)",
                [url, method, body],
            )

    def refused() -> set[object]:
        lines = [line for line in proxy.audit() if line["status"] == 403]
        return {line["method"] for line in lines if "only pages of this proxy" in str(line)}

    until(lambda: refused() == {"GET", "POST"}, "their audit lines")
    kept = requests.get(f"{api.url}/getCapacity/H100", timeout=TIMEOUT_S).json()
    assert kept == {"type": "H100", "count": 3}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "OWN"}, 403),
        ({"Origin": "OWN"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_cookie_changes_something_only_with_proof_of_an_own_page(
    proxy: ProxyProcess, headers: dict[str, str], status: int
) -> None:
    sent = {name: value.replace("OWN", proxy.url) for name, value in headers.items()}
    sent["Cookie"] = f"a=b; hearth_token={make_token(role='operator')}"
    body = {"type": "L4", "count": 1}
    reply = requests.post(f"{proxy.url}/setCapacity", json=body, headers=sent, timeout=TIMEOUT_S)
    assert reply.status_code == status


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        ("token=" + "x" * 9000, "application/x-www-form-urlencoded", 413),
        ('{"token": "x"}', "application/json", 415),
        ("token=x", "text/plain", 415),
        ("", "application/x-www-form-urlencoded", 401),
        ("&".join("a=b" for _ in range(99)), "application/x-www-form-urlencoded", 401),
        ("token=\xff\xfe", "application/x-www-form-urlencoded", 401),
    ],
)
def test_login_takes_a_short_form_only(
    proxy: ProxyProcess, body: str, content_type: str, status: int
) -> None:
    headers = {"Content-Type": content_type, "Origin": proxy.url}
    url = f"{proxy.url}/login"
    reply = requests.post(url, data=body.encode("latin-1"), headers=headers, timeout=TIMEOUT_S)
    assert reply.status_code == status
    assert "Set-Cookie" not in reply.headers


def test_login_of_another_page_is_refused_and_a_cookie_ends_with_its_token(
    proxy: ProxyProcess,
) -> None:
    def log_in_from(origin: str, **claims: Any) -> requests.Response:
        return requests.post(
            f"{proxy.url}/login",
            data={"token": make_token(**claims)},
            headers={"Origin": origin},
            allow_redirects=False,
            timeout=TIMEOUT_S,
        )

    assert log_in_from("http://evil.example").status_code == 403
    entered = log_in_from(proxy.url, exp=4_000_000_000)
    assert (entered.status_code, entered.headers["Location"]) == (303, "/")
    (max_age,) = re.findall(r"Max-Age=(\d+)$", entered.headers["Set-Cookie"])
    assert 0 < int(max_age) < 4_000_000_000
    assert "Secure" not in entered.headers["Set-Cookie"]
    behind_tls = log_in_from(f"https://127.0.0.1:{proxy.port}")
    assert behind_tls.headers["Set-Cookie"].endswith("; Path=/; Secure")


def test_programs_without_a_token_get_401_and_not_the_login(proxy: ProxyProcess) -> None:
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "text/html", "Authorization": "Bearer x"}):
        reply = requests.get(
            f"{proxy.url}/", headers=headers, allow_redirects=False, timeout=TIMEOUT_S
        )
        assert reply.status_code == 401
    assert (
        requests.get(f"{proxy.url}/v1/models", headers=bearer(), timeout=TIMEOUT_S).status_code
        == 200
    )
