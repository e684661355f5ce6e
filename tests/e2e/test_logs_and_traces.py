"""One request through proxy and API: the same id in both logs, and its trace at a receiver."""

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from inference_api.settings import Settings
from inference_api.watch.telemetry import faults
from lab.kit import servers
from lab.kit.servers import MOCK_APP, TIMEOUT_S, ServedApi, eventually
from tests.forked import served
from tests.proxy.support import ProxyProcess, bearer, running_proxy

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@dataclass
class Receiver:
    """An OTLP/HTTP endpoint that keeps the spans it is sent."""

    server: ThreadingHTTPServer
    spans: list[Span] = field(default_factory=list)
    services: set[str] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = {item.key: item.value.string_value for item in group.resource.attributes}
            self.services.add(attributes["service.name"])
            for scope in group.scope_spans:
                self.spans.extend(scope.spans)

    def trace_of(self, request_id: str) -> dict[str, Span]:
        """The four spans of one generation by name; none while they are not all there."""
        wholes = [span for span in self.spans if attribute(span, "hearth.request_id") == request_id]
        if not wholes:
            return {}
        within = [span for span in self.spans if span.parent_span_id == wholes[0].span_id]
        trace = {span.name: span for span in wholes + within}
        return trace if len(trace) == 4 else {}


def attribute(span: Span, name: str) -> Any:
    for item in span.attributes:
        if item.key == name:
            return item.value.string_value or item.value.int_value
    return None


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(self.path, body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    collector = Receiver(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    thread = Thread(target=collector.server.serve_forever)
    thread.start()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[ServedApi]:
    settings: dict[str, Any] = {
        "LOG_FORMAT": "json",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_SERVICE_NAME": "hearth-under-test",
        "OTEL_BSP_SCHEDULE_DELAY": "100",  # ms
    }
    with served(tmp_path_factory.mktemp("api") / "log", MOCK_APP, **settings) as api:
        yield api


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, api: ServedApi) -> Iterator[ProxyProcess]:
    with running_proxy(tmp_path_factory.mktemp("proxy"), api.url, LOG_FORMAT="json") as proxy:
        yield proxy


def ask(proxy: ProxyProcess, path: str = "/inference", **headers: str) -> str:
    """Send one request through the proxy; the id it was given."""
    body = {"text": "hello", "max_tokens": 4}
    response = requests.post(
        proxy.url + path, json=body, headers=bearer() | headers, timeout=TIMEOUT_S
    )
    assert response.content
    return response.headers["X-Request-Id"]


def lines_of(log: str, request_id: str) -> list[dict[str, Any]]:
    whole = log[: log.rfind("\n") + 1]  # it is being written
    lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("request_id") == request_id]


def audit_of(proxy: ProxyProcess, request_id: str) -> list[dict[str, Any]]:
    """Written after the answer's last byte, so not at once."""
    return [line for line in proxy.audit() if line["request_id"] == request_id]


def test_one_request_has_one_id_in_both_logs(api: ServedApi, proxy: ProxyProcess) -> None:
    request_id = ask(proxy)
    (theirs,) = eventually(lambda: lines_of(api.log, request_id))
    assert theirs["completion_tokens"] == 4
    assert theirs["team_id"] == "team-a"
    (ours,) = eventually(lambda: audit_of(proxy, request_id))
    assert (ours["route"], ours["status"]) == ("/inference", 200)


def test_refused_request_has_its_id_in_both_logs_too(api: ServedApi, proxy: ProxyProcess) -> None:
    request_id = ask(proxy, "/inference/nobody")
    (line,) = eventually(lambda: lines_of(api.log, request_id))
    assert line["message"] == "refused '/inference/nobody': 404 model_not_found"
    (ours,) = eventually(lambda: audit_of(proxy, request_id))
    assert ours["status"] == 404


def test_every_line_of_the_apis_log_is_json(api: ServedApi) -> None:
    for line in api.log.splitlines():
        assert {"levelname", "name", "message"} <= json.loads(line).keys()


def test_trace_goes_on_through_the_proxy(proxy: ProxyProcess, receiver: Receiver) -> None:
    request_id = ask(proxy, traceparent=f"00-{TRACE_ID}-{PARENT_ID}-01")
    trace = eventually(lambda: receiver.trace_of(request_id))
    assert set(trace) == {"generation", "queue", "prefill", "decode"}
    assert {span.trace_id.hex() for span in trace.values()} == {TRACE_ID}
    whole = trace["generation"]
    assert whole.parent_span_id.hex() == PARENT_ID
    assert whole.kind == Span.SPAN_KIND_SERVER
    assert attribute(whole, "gen_ai.usage.input_tokens") == 5
    assert attribute(whole, "gen_ai.usage.output_tokens") == 4
    assert attribute(whole, "gen_ai.request.model") == "hearth-tiny"
    assert whole.status.code == Status.STATUS_CODE_UNSET
    assert receiver.services == {"hearth-under-test"}


def test_phases_follow_each_other_and_fill_the_generation(
    proxy: ProxyProcess, receiver: Receiver
) -> None:
    request_id = ask(proxy)
    trace = eventually(lambda: receiver.trace_of(request_id))
    whole, phases = trace["generation"], [trace[name] for name in ("queue", "prefill", "decode")]
    starts = [span.start_time_unix_nano for span in phases]
    ends = [span.end_time_unix_nano for span in phases]
    assert starts == [whole.start_time_unix_nano, *ends[:-1]]
    assert ends[-1] == whole.end_time_unix_nano
    assert ends[1] > starts[1]
    assert ends[2] > starts[2]


def test_traces_of_many_at_once_stay_apart(proxy: ProxyProcess, receiver: Receiver) -> None:
    with ThreadPoolExecutor(16) as pool:
        ids = list(pool.map(lambda _: ask(proxy), range(32)))
    eventually(lambda: all(receiver.trace_of(request_id) for request_id in ids))
    traces = [receiver.trace_of(request_id) for request_id in ids]
    assert len({trace["generation"].trace_id for trace in traces}) == 32


def test_trace_that_its_caller_does_not_sample_is_not_sent(
    proxy: ProxyProcess, receiver: Receiver
) -> None:
    unsampled = ask(proxy, traceparent=f"00-{TRACE_ID}-{PARENT_ID}-00")
    sampled = ask(proxy)
    assert eventually(lambda: receiver.trace_of(sampled))
    assert receiver.trace_of(unsampled) == {}


def test_asking_for_traces_without_the_extra_stops_the_start(tmp_path: Path) -> None:
    absent = tmp_path / "opentelemetry"
    absent.mkdir()
    (absent / "__init__.py").write_text("raise ImportError(name='opentelemetry')")
    settings: dict[str, Any] = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
        "PYTHONPATH": str(tmp_path),
    }
    log_path = tmp_path / "log"
    with servers.served(log_path, MOCK_APP, start_timeout_s=None, **settings) as api:
        assert api.process.wait(TIMEOUT_S) != 0
        assert "pip install -r requirements-otel.txt" in api.log
        assert "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318" in api.log


def test_nothing_is_asked_of_who_asks_for_nothing() -> None:
    assert faults(Settings()) == []
