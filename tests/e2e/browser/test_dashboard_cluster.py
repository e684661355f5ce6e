"""The cluster on the dashboard: a real controller, over replicas that only count, read by a server;
and on the page of its own.

The optimizer it asks is that server's own.
"""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from werkzeug.serving import make_server

from cluster.controller.app import create_app
from cluster.controller.cycle import ControllerParts
from cluster.controller.loop import Controller
from cluster.controller.optimizer import OptimizerClient
from lab.kit.servers import MOCK_APP, ServedApi, eventually
from tests.cluster.fleet import CountingReader, MemoryActuator, config, system, system_json
from tests.e2e.browser.pages import check_accessibility, opened, show
from tests.forked import served
from tests.ports import free_port

RATE = 3000.0
# The controller runs in the process of the tests: where that is held up, it answers later than the
# server waits for, and the page shows what it knew until it reads the next answer.
LATE = "status of 503"


class Fleet:
    """A controller that is invoked, at times that it is told, and its replicas."""

    def __init__(self, optimizer_url: str, journal: Path) -> None:
        self.document = system(system_json(rate=RATE))
        self.journal = journal
        self.actuator, self.reader, self.at_s = MemoryActuator(), CountingReader(), 0.0
        keys = config(self.document, period_s=0, rollout_s=0.1, journal=journal)
        parts = ControllerParts(keys, self.document, OptimizerClient(optimizer_url), self.reader)
        self.controller = Controller(parts, lambda: self.actuator, lambda: self.at_s)

    def cycle(self, ttft_ms: float = 100.0, itl_ms: float = 10.0) -> None:
        """A minute with its requests, and what is decided after it."""
        self.actuator.settle()
        self.at_s += 60
        self.reader.at_s = self.at_s
        if self.actuator.ready():
            self.reader.serve(self.actuator.replicas(), RATE, ttft_ms=ttft_ms, itl_ms=itl_ms)
        self.controller.invoke(30)


@pytest.fixture(scope="module")
def controller_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def api(controller_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    log_path = tmp_path_factory.mktemp("watching") / "log"
    url = f"http://127.0.0.1:{controller_port}"
    with served(log_path, MOCK_APP, CLUSTER_URL=url) as api:
        yield api


@pytest.fixture
def fleet(api: ServedApi, controller_port: int, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(api.url, tmp_path / "cluster.jsonl")
    app = create_app(fleet.controller, fleet.document)
    server = make_server("127.0.0.1", controller_port, app, threaded=True)
    thread = Thread(target=server.serve_forever, name="controller-http")
    thread.start()
    fleet.controller.start()
    yield fleet
    fleet.controller.stop()
    server.shutdown()
    thread.join(timeout=60)
    server.server_close()


def cells(page: Page, table: str) -> Any:
    line = page.locator(f"#cluster-{table} tbody tr").first
    return lambda label: line.locator(f"td[data-label={label}]")


def test_plans_replicas_and_decisions_are_shown(
    api: ServedApi, browser: Browser, fleet: Fleet
) -> None:
    with opened(browser, api.url, may_log=LATE) as page:
        show(page, "cluster")
        expect(page.locator("#cluster-summary")).to_contain_text("no cycle yet")
        fleet.cycle()
        of_server = cells(page, "servers")
        expect(of_server("Plan")).to_have_text("4 × A, 16 rows")
        expect(of_server("Decision")).to_have_text("changed")
        fleet.cycle()
        fleet.cycle(ttft_ms=900.0)
        expect(page.locator("#cluster-summary")).to_contain_text("cycle 3")
        expect(of_server("Replicas")).to_contain_text("ready")
        expect(of_server("Arrivals")).to_contain_text("3,000 /min")
        expect(of_server("TTFT")).to_contain_text("900 of 500 ms, missed")
        expect(of_server("TTFT")).to_contain_text("predicted ")
        expect(of_server("ITL")).to_contain_text("10 of 25 ms")
        expect(page.locator("#cluster-decisions tbody tr")).to_have_count(3)
        expect(cells(page, "decisions")("Cycle")).to_contain_text("3")
        expect(page.locator("#cluster-replicas")).to_contain_text("r0001")
        for _ in range(10):
            fleet.cycle()
        expect(of_server("Arrivals")).to_contain_text("forecasts held, ± ")


def test_a_plan_for_too_few_cards_is_told(api: ServedApi, browser: Browser, fleet: Fleet) -> None:
    counts = [{"type": "A", "count": 2}, {"type": "B", "count": 0}]
    fleet.document.parts["capacityData"]["count"] = counts
    with opened(browser, api.url, may_log=LATE) as page:
        show(page, "cluster")
        fleet.cycle()
        of_server = cells(page, "servers")
        expect(of_server("Plan")).to_have_text("2 × A, 16 rows")
        expect(of_server("Decision")).to_contain_text("changed")
        expect(of_server("Decision")).to_contain_text("fewer than its load needs")


def test_it_is_accessible_and_fits(api: ServedApi, browser: Browser, fleet: Fleet) -> None:
    fleet.cycle()
    with opened(browser, api.url, may_log=LATE) as page:
        page.get_by_role("link", name="Cluster").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#cluster-servers tbody tr")).to_have_count(1)
        check_accessibility(page)


def test_the_controllers_own_page_shows_servers_and_replicas_and_has_a_plan_made(
    controller_port: int, browser: Browser, fleet: Fleet
) -> None:
    fleet.cycle()
    fleet.cycle()
    with opened(browser, f"http://127.0.0.1:{controller_port}") as page:
        server = page.locator("#servers tr")
        expect(server).to_contain_text("4 × A (16 rows)")
        expect(server).to_contain_text("4 ready")
        expect(page.locator("#replicas tr").first).to_contain_text("http://r0001")
        before = len(fleet.journal.read_text().splitlines())
        page.get_by_role("button", name="Plan now").click()
        eventually(lambda: len(fleet.journal.read_text().splitlines()) > before)
        expect(page.locator("#fault")).to_be_hidden()


def test_a_controller_that_is_away_is_told(api: ServedApi, browser: Browser) -> None:
    eventually(lambda: api.get("/dashboard/cluster").status_code == 503)
    with opened(browser, api.url, may_log=LATE) as page:
        show(page, "cluster")
        expect(page.locator("#cluster-fault")).to_contain_text("The cluster cannot be read: ")
        expect(page.locator("#server-phase")).to_have_text("ready")
