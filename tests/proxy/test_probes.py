"""The metrics port by itself."""

import socket

import pytest
from prometheus_client import CollectorRegistry

from proxy import probes
from proxy.probes import ControlServer
from proxy.settings import Settings
from tests.ports import free_port
from tests.proxy.support import DEADLINE_S


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HT"], ids=["silent", "cut"])
def test_a_client_that_sends_too_little_prints_nothing(
    sent: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probes._QuietHandler, "timeout", 0.01)
    settings = Settings(proxy_metrics_port=free_port())
    server = ControlServer(settings, lambda path: None, CollectorRegistry())
    server.start()
    address = settings.proxy_metrics_host, settings.proxy_metrics_port
    with socket.create_connection(address, DEADLINE_S) as client:
        client.sendall(sent)
        assert client.recv(1) == b""
    server.stop()
    assert capfd.readouterr().err == ""
