"""Discovery by EndpointSlices: what is listed, what a bad API server does, and a real proxy."""

import datetime
import ipaddress
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lab.kit.servers import TIMEOUT_S
from proxy.errors import StartupError
from proxy.proxy import create_proxy
from proxy.settings import Settings
from proxy.upstreams import endpoint_slices
from proxy.upstreams.endpoint_slices import (
    LIST_BOUNDS,
    WATCH_BOUNDS,
    ApiServer,
    EndpointSlice,
    EndpointSlices,
    Services,
    specs_of,
)
from tests.kubernetes_api import (
    Answer,
    Handler,
    KubernetesApi,
    Object,
    garbage,
    half,
    hang,
    refuse,
    reset,
)
from tests.proxy.support import (
    SECRET,
    Peer,
    ProxyProcess,
    ScriptedUpstream,
    bearer,
    gauge,
    running_proxy,
    until,
)

SERVICES = Services("hearth", ("chat", "code"))
NO_ACCOUNT = Path("/nowhere")


def endpoint(address: str, **conditions: bool) -> Object:
    return {"addresses": [address], "conditions": conditions}


def slice_of(
    *endpoints: Object,
    name: str = "chat-1",
    port: int = 7000,
    address_type: str = "IPv4",
    **labels: str,
) -> Object:
    named = {f"hearth.dev/{key}": value for key, value in labels.items()}
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/service-name": name.partition("-")[0]} | named,
        },
        "addressType": address_type,
        "endpoints": list(endpoints),
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
    }


def specs(*slices: Object) -> list[str]:
    return [spec.url for spec in specs_of(map(EndpointSlice.model_validate, slices))]


def test_ready_endpoints_are_listed_and_ending_ones_are_not() -> None:
    assert specs(
        slice_of(
            endpoint("10.0.0.3", ready=True, serving=True, terminating=False),
            endpoint("10.0.0.2", ready=False, serving=False, terminating=False),
            endpoint("10.0.0.4", ready=False, serving=True, terminating=True),
            endpoint("10.0.0.5", ready=True, serving=True, terminating=True),
            endpoint("10.0.0.1"),  # what is unknown counts as ready
        )
    ) == ["http://10.0.0.1:7000", "http://10.0.0.3:7000"]


def test_addresses_of_both_families_are_one_replica() -> None:
    target = {"targetRef": {"kind": "Pod", "uid": "u1"}}
    assert specs(
        slice_of(endpoint("fd00::1") | target, name="chat-6", address_type="IPv6"),
        slice_of(endpoint("10.0.0.1") | target),
        slice_of(endpoint("fd00::2"), name="chat-7", address_type="IPv6", port=7001),
        slice_of(endpoint("a.example.org"), name="chat-8", address_type="FQDN"),
    ) == ["http://10.0.0.1:7000", "http://[fd00::2]:7001"]


def test_an_endpoint_that_moves_between_slices_is_one_replica() -> None:
    assert specs(slice_of(endpoint("10.0.0.1")), slice_of(endpoint("10.0.0.1"), name="chat-2")) == [
        "http://10.0.0.1:7000"
    ]


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ([{"name": "http", "port": 7000}, {"name": "metrics", "port": 9}], 7000),
        ([{"name": "", "port": 8000}], 8000),
        ([{"name": "a", "port": 1}, {"name": "b", "port": 2}], None),
        ([], None),
        (None, None),
    ],
)
def test_port_is_the_one_called_http_or_the_only_one(ports: Any, expected: int | None) -> None:
    found = specs(slice_of(endpoint("10.0.0.1")) | {"ports": ports})
    assert found == ([f"http://10.0.0.1:{expected}"] if expected else [])


def test_labels_of_the_service_say_model_and_weight() -> None:
    (spec,) = specs_of(
        [EndpointSlice.model_validate(slice_of(endpoint("10.0.0.1"), model="m", weight="0.5"))]
    )
    assert (spec.models, spec.weight, spec.server) == (("m",), 0.5, "chat")


def test_a_replica_of_two_services_serves_the_models_of_both() -> None:
    both = [
        slice_of(endpoint("10.0.0.1"), model="a"),
        slice_of(endpoint("10.0.0.1"), name="code-1", model="b"),
    ]
    (spec,) = specs_of(map(EndpointSlice.model_validate, both))
    assert spec.models == ("a", "b")
    both.append(slice_of(endpoint("10.0.0.1"), name="code-2"))
    (spec,) = specs_of(map(EndpointSlice.model_validate, both))
    assert spec.models == ()


def test_label_of_the_service_says_what_a_replica_costs() -> None:
    labelled = slice_of(endpoint("10.0.0.1"))
    labelled["metadata"]["labels"]["hearth.dev/cents-per-hour"] = "40"
    (spec,) = specs_of([EndpointSlice.model_validate(labelled)])
    assert spec.cents_per_hour == 40


@pytest.mark.parametrize("weight", ["-1", "much", "nan", "0"])
def test_a_faulty_weight_names_label_and_service(weight: str) -> None:
    faulty = EndpointSlice.model_validate(slice_of(endpoint("10.0.0.1"), weight=weight))
    with pytest.raises(ValueError, match=r"hearth\.dev/weight of Service 'chat'"):
        specs_of([faulty])


@pytest.mark.parametrize(
    "text", ["chat", "a/", "/b", "a/b/c", "A/b", "a/b,", "a/b c", "a/" + "b" * 64]
)
def test_what_names_no_services_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="namespace/service"):
        Services.parse(text)


@pytest.fixture
def api() -> Iterator[KubernetesApi]:
    server = KubernetesApi()
    yield server
    server.stop()


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_slices, "MIN_TURN_S", 0.05)
    monkeypatch.setattr(endpoint_slices, "MAX_PAUSE_S", 0.2)


class Followed:
    """A discovery that runs, and how often it said that something has changed."""

    def __init__(self, url: str, account: Path = NO_ACCOUNT) -> None:
        self.discovery = EndpointSlices(ApiServer(url, account), SERVICES)
        self.changes: list[list[str]] = []
        self.discovery.start(lambda: self.changes.append(self.urls()))

    def urls(self) -> list[str]:
        return [spec.url for spec in self.discovery.current]

    def until(self, *urls: str) -> None:
        until(lambda: self.urls() == list(urls), f"{urls} instead of {self.urls()}")

    def close(self) -> None:
        self.discovery.stop()


ONE, TWO = "http://10.0.0.1:7000", "http://10.0.0.2:7000"


def test_replicas_come_and_go_by_the_watch(api: KubernetesApi) -> None:
    api.put("endpointslices", slice_of(endpoint("10.0.0.1")))
    api.put("endpointslices", slice_of(endpoint("10.9.9.9"), name="other-1"))
    with closing(Followed(api.url)) as followed:
        followed.until(ONE)
        until(lambda: api.num_watches == 1)
        api.put("endpointslices", slice_of(endpoint("10.0.0.2"), name="code-1"))
        followed.until(ONE, TWO)
        api.put("endpointslices", slice_of(endpoint("10.0.0.1", serving=True, terminating=True)))
        followed.until(TWO)
        api.remove("endpointslices", "code-1")
        followed.until()
        assert followed.changes == [[ONE], [ONE, TWO], [TWO], []]
        assert sum(not request.is_watch() for request in api.requests) == 1


def test_a_change_is_told_once(api: KubernetesApi) -> None:
    api.put("endpointslices", slice_of(endpoint("10.0.0.1")))
    assert EndpointSlices(ApiServer(api.url, NO_ACCOUNT), SERVICES).is_stale
    with closing(Followed(api.url)) as followed:
        followed.until(ONE)
        until(lambda: not followed.discovery.is_stale)
        assert followed.changes == [[ONE]]


def gone_in_the_stream(handler: Handler) -> None:
    handler.begin_watch()
    handler.chunk(b'{"type": "ERROR", "object": {"kind": "Status", "code": 410}}\n')
    handler.wfile.write(b"0\r\n\r\n")


def cut_in_an_event(handler: Handler) -> None:
    handler.begin_watch()
    handler.chunk(b'{"type": "MODIFIED", "object": {"metadata"')
    handler.close_connection = True


def silent(handler: Handler) -> None:
    handler.begin_watch()
    hang(handler)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(
    "answer",
    [refuse(410), gone_in_the_stream, cut_in_an_event, silent, reset, garbage, refuse(500)],
)
def test_a_watch_that_fails_is_followed_by_a_list(
    api: KubernetesApi, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_slices, "WATCH_BOUNDS", replace(WATCH_BOUNDS, read_s=0.3))
    api.put("endpointslices", slice_of(endpoint("10.0.0.1")))
    api.fail(answer, watch=True)
    with closing(Followed(api.url)) as followed:
        until(lambda: len(api.requests) >= 2)  # by now the watch has been asked for
        api.put("endpointslices", slice_of(endpoint("10.0.0.2")))
        followed.until(TWO)
        until(lambda: not followed.discovery.is_stale)
        assert followed.changes == [[ONE], [TWO]]


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("answer", [refuse(500), refuse(403), half, garbage, reset, hang])
def test_a_list_that_fails_leaves_the_last_one(
    api: KubernetesApi,
    answer: Answer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint_slices, "LIST_BOUNDS", replace(LIST_BOUNDS, read_s=0.5))
    api.put("endpointslices", slice_of(endpoint("10.0.0.1")))
    with closing(Followed(api.url)) as followed:
        followed.until(ONE)
        until(lambda: api.num_watches == 1)
        api.fail(answer, times=2)
        api.cut_watches()
        until(lambda: followed.discovery.is_stale)
        assert followed.urls() == [ONE]
        until(lambda: not followed.discovery.is_stale)
        assert followed.urls() == [ONE]
    assert "the last 1 stay" in caplog.text


@pytest.mark.usefixtures("_impatient")
def test_a_refusal_says_what_to_do(api: KubernetesApi, caplog: pytest.LogCaptureFixture) -> None:
    api.fail(403, times=10**6)
    with closing(Followed(api.url)):
        until(lambda: len(api.requests) > 4)
    assert caplog.text.count("403: scripted refusal; bind the Role") == 1


@pytest.mark.usefixtures("_impatient")
def test_an_api_server_that_comes_back_is_followed_again(api: KubernetesApi) -> None:
    api.put("endpointslices", slice_of(endpoint("10.0.0.1")))
    with closing(Followed(api.url)) as followed:
        followed.until(ONE)
        api.stop()
        until(lambda: followed.discovery.is_stale)
        again = KubernetesApi(api.port)
        again.put("endpointslices", slice_of(endpoint("10.0.0.2")))
        followed.until(TWO)
        until(lambda: not followed.discovery.is_stale)
        assert again.requests
    again.stop()
    api.stop = lambda: None  # type: ignore[method-assign]


@pytest.mark.parametrize("is_hung", [True, False])
def test_stopping_does_not_wait_for_the_api_server(api: KubernetesApi, is_hung: bool) -> None:
    if is_hung:
        api.fail(hang)
    followed = Followed(api.url)
    until(lambda: len(api.requests) == (1 if is_hung else 2))
    followed.close()
    assert not api.is_stopping.is_set()


def authority(folder: Path) -> ssl.SSLContext:
    """Writes an account's ca.crt and token; returns what a server of that authority serves by."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(True, None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (folder / "token").write_text("first\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key.pem")
    return context


@pytest.mark.usefixtures("_impatient")
def test_the_account_is_used_over_tls_and_its_token_read_anew(tmp_path: Path) -> None:
    api = KubernetesApi(tls=authority(tmp_path))
    api.put("endpointslices", slice_of(endpoint("10.0.0.1")))
    with closing(Followed(api.url, tmp_path)) as followed:
        followed.until(ONE)
        until(lambda: api.num_watches == 1)
        (tmp_path / "token").write_text("second\n")
        num_requests = len(api.requests)
        api.cut_watches()
        until(lambda: len(api.requests) > num_requests)
    assert {request.token for request in api.requests[:2]} == {"Bearer first"}
    assert {request.token for request in api.requests[num_requests:]} == {"Bearer second"}
    api.stop()


@pytest.mark.usefixtures("_impatient")
def test_another_authority_gets_no_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    authority(ours)
    api = KubernetesApi(tls=authority(theirs))
    with closing(Followed(api.url, ours)):
        until(lambda: "CERTIFICATE_VERIFY_FAILED" in caplog.text)
    assert api.requests == []
    api.stop()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "run in a pod with a service account"),
        ({"kubernetes_api": "ftp://a"}, "KUBERNETES_API='ftp://a': is no address; give"),
        ({"upstreams_service": "chat"}, "UPSTREAMS_SERVICE='chat'; expected namespace/service"),
    ],
)
def test_a_start_that_cannot_ask_says_why(environment: dict[str, str], message: str) -> None:
    given = {"jwt_secret": SECRET, "upstreams_service": "hearth/chat"} | environment
    with pytest.raises(StartupError, match=message):
        create_proxy(Settings.load(**given))


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[KubernetesApi, ProxyProcess]]:
    api = KubernetesApi()
    folder, services = tmp_path_factory.mktemp("proxy"), "hearth/chat,code"
    with running_proxy(folder, "", UPSTREAMS_SERVICE=services, KUBERNETES_API=api.url) as proxy:
        yield api, proxy
    api.stop()


def served_by(proxy: ProxyProcess, wanted: Callable[[], object]) -> None:
    def is_served() -> bool:
        requests.post(f"{proxy.url}/v1/completions", json={}, headers=bearer(), timeout=TIMEOUT_S)
        return bool(wanted())

    until(is_served)


def test_proxy_follows_a_service_and_sends_nothing_to_who_is_ending(
    cluster: tuple[KubernetesApi, ProxyProcess],
) -> None:
    api, proxy = cluster
    refused = requests.get(f"{proxy.url}/v1/models", headers=bearer(), timeout=TIMEOUT_S)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    first, second = ScriptedUpstream(), ScriptedUpstream()
    has_begun, may_end = threading.Event(), threading.Event()

    def slow(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(b"a")
        has_begun.set()
        may_end.wait(60)
        peer.chunk(b"b")
        peer.end_stream()

    first.scripts["/slow"] = slow
    local = endpoint("127.0.0.1")
    api.put("endpointslices", slice_of(local, port=first.port))
    served_by(proxy, lambda: first.seen("/v1/completions"))
    answers: list[str] = []
    stream = threading.Thread(
        target=lambda: answers.append(
            requests.get(f"{proxy.url}/slow", headers=bearer(), timeout=TIMEOUT_S).text
        )
    )
    stream.start()
    assert has_begun.wait(60)
    api.put("endpointslices", slice_of(local, name="code-1", port=second.port))
    served_by(proxy, lambda: second.seen("/v1/completions"))
    ending = endpoint("127.0.0.1", ready=False, serving=True, terminating=True)
    api.put("endpointslices", slice_of(ending, port=first.port))
    until(lambda: f"127.0.0.1:{first.port}" not in proxy.metric("/metrics"))
    num_before = len(first.requests)
    for _ in range(20):
        requests.post(f"{proxy.url}/v1/completions", json={}, headers=bearer(), timeout=TIMEOUT_S)
    assert len(first.requests) == num_before
    may_end.set()
    stream.join(60)
    assert answers == ["ab"]

    assert gauge(proxy, "hearth_proxy_upstreams_stale") == 0
    api.fail(500, times=10**6)
    api.cut_watches()
    until(lambda: gauge(proxy, "hearth_proxy_upstreams_stale") == 1)
    assert "replicas are not followed, the last 1 stay: 500" in proxy.log()
    num_before = len(second.requests)
    served_by(proxy, lambda: len(second.requests) > num_before)
    first.stop()
    second.stop()
