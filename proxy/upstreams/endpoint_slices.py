"""Discovery by Kubernetes: the ready endpoints of Services, from their EndpointSlices.

Kubernetes marks the endpoint of a pod as `terminating` before it stops the pod. So the endpoint
leaves the list while the pod's preStop hook sleeps, and no request is sent to a draining pod.

The API server is asked by plain GETs, because one list and one watch do not need the official
client's hundreds of modules.
"""

import ipaddress
import json
import logging
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPResponse
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

from pydantic import AliasPath, BaseModel, Field

from common.addresses import http_parts
from common.connections.sockets import host_and_port
from common.fetch import OK, FetchBounds, body_of, connected
from proxy.errors import DiscoveryFailed
from proxy.files import validated
from proxy.upstreams.specs import Discovery, Specs, UpstreamSpec

log = logging.getLogger(__name__)

# Length of each watch. A new list precedes each, so a lost event matters no longer than this.
WATCH_S = 30
# A watch that the server has not ended by then is dead. An event has one slice, of at most 1,000
# endpoints; a list may have some 100,000.
WATCH_BOUNDS = FetchBounds(connect_s=5.0, read_s=WATCH_S + 10.0, max_bytes=4 * 2**20)
LIST_BOUNDS = FetchBounds(connect_s=5.0, read_s=30.0, max_bytes=64 * 2**20)
MIN_TURN_S = 1.0  # least time between two lists
MAX_PAUSE_S = 30.0  # longest pause between tries while the API server is down
MAX_REFUSAL_BYTES = 64 * 1024
REMEDIES = {
    401: "the token is not accepted; is the service account still there?",
    403: "bind the Role of deploy/kubernetes/base/proxy.yaml to the service account",
}

PORT_NAME = "http"
SERVICE_LABEL = "kubernetes.io/service-name"
# A Service's labels are copied to its slices.
MODEL_LABEL = "hearth.dev/model"
WEIGHT_LABEL = "hearth.dev/weight"
COST_LABEL = "hearth.dev/cents-per-hour"

_NAME = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_SERVICES = re.compile(rf"({_NAME})/({_NAME}(?:,{_NAME}){{0,63}})")


class ApiServer:
    """A client with the service account of the proxy's pod. It uses the account's token and
    certificate over https, and neither over http (`kubectl proxy`)."""

    def __init__(self, url: str, account: Path) -> None:
        """Raises OSError for an unusable account."""
        self._parts, self._token_file = http_parts(url), account / "token"
        self._tls: ssl.SSLContext | None = None
        if self._parts.scheme == "https":
            self._tls = ssl.create_default_context(cafile=account / "ca.crt")
            self._token_file.read_text("ascii")

    @contextmanager
    def get(self, path: str, bounds: FetchBounds) -> Iterator[HTTPResponse]:
        """Returns an answer with status 200, which the caller reads within `max_bytes`. Raises
        DiscoveryFailed for another status, and OSError or HTTPException."""
        with connected(self._parts, bounds, self._tls) as connection:
            connection.request("GET", self._parts.path + path, headers=self._headers())
            with connection.getresponse() as response:
                if response.status != OK:
                    raise _refusal(response)
                yield response

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if self._tls is not None:
            # Read each time, because the kubelet renews it within the hour.
            token = self._token_file.read_text("ascii").strip()
            headers["Authorization"] = f"Bearer {token}"
        return headers


def _refusal(response: HTTPResponse) -> DiscoveryFailed:
    status = response.status
    try:
        answer = json.loads(response.read(MAX_REFUSAL_BYTES))
        message = str(answer["message"])[:512]
    except (ValueError, LookupError, TypeError, RecursionError):
        message = response.reason
    remedy = REMEDIES.get(status)
    return DiscoveryFailed(
        f"{status}: {message}" + (f"; {remedy}" if remedy else ""), is_gone=status == 410
    )


class SliceEndpoint(BaseModel):
    """An endpoint. Missing conditions have the API's defaults: ready, and not terminating."""

    addresses: list[str] = []
    ready: bool | None = Field(default=None, validation_alias=AliasPath("conditions", "ready"))
    terminating: bool | None = Field(
        default=None, validation_alias=AliasPath("conditions", "terminating")
    )
    pod: str | None = Field(default=None, validation_alias=AliasPath("targetRef", "uid"))


class SlicePort(BaseModel):
    name: str | None = None
    port: int | None = Field(default=None, ge=1, le=65535)


class EndpointSlice(BaseModel):
    name: str = Field(default="", validation_alias=AliasPath("metadata", "name"))
    labels: dict[str, str] = Field(default={}, validation_alias=AliasPath("metadata", "labels"))
    address_type: str = Field(default="", alias="addressType")
    endpoints: list[SliceEndpoint] | None = None
    ports: list[SlicePort] | None = None


class SliceList(BaseModel):
    version: str = Field(default="", validation_alias=AliasPath("metadata", "resourceVersion"))
    items: list[EndpointSlice] | None = None


class Event(BaseModel):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]


class WatchedChange(Event):
    slice: EndpointSlice = Field(alias="object")


@dataclass(frozen=True, slots=True)
class Services:
    """Names of Services in one namespace."""

    namespace: str
    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Services":
        found = _SERVICES.fullmatch(text)
        if found is None:
            raise ValueError(
                f"UPSTREAMS_SERVICE={text!r}; expected namespace/service, "
                "or namespace/service,service with up to 64"
            )
        return cls(found[1], tuple(found[2].split(",")))

    def path(self, **query: str | int) -> str:
        selector = f"{SERVICE_LABEL} in ({','.join(self.names)})"
        parameters = urlencode({"labelSelector": selector, **query})
        return f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices?{parameters}"


class EndpointSlices(Discovery):
    """Follows the slices of Services, in its own thread from `start` on. After `stop` it ends with
    its request. While the API server is down, the last list stays."""

    def __init__(self, api: ApiServer, services: Services) -> None:
        super().__init__()
        self._api = api
        self._services = services
        self._slices: dict[str, EndpointSlice] = {}  # this object's thread only
        self._must_stop = threading.Event()
        self._fault = "not listed yet"

    @property
    def is_stale(self) -> bool:
        return bool(self._fault)

    def start(self, on_change: Callable[[], object]) -> None:
        super().start(on_change)
        # Not earlier, because threads do not survive gunicorn's fork.
        threading.Thread(target=self._run, name="proxy-discovery", daemon=True).start()

    def stop(self) -> None:
        self._must_stop.set()

    def _run(self) -> None:
        num_failures = 0
        while not self._must_stop.is_set():
            begun_s = time.monotonic()
            try:
                self._watch(self._list())
                num_failures = 0
            except Exception as error:  # the next answer may be valid
                num_failures += 1
                self._note_fault(error)
            pause_s = min(MIN_TURN_S * 2 ** min(num_failures, 8), MAX_PAUSE_S)
            self._must_stop.wait(begun_s + pause_s - time.monotonic())

    def _list(self) -> str:
        """Returns the version from which a watch continues."""
        with self._api.get(self._services.path(), LIST_BOUNDS) as response:
            listed = SliceList.model_validate_json(body_of(response, LIST_BOUNDS.max_bytes))
        self._slices = {found.name: found for found in listed.items or ()}
        self._publish()
        if self._fault:
            self._fault = ""
            log.info("replicas of %s are followed", ",".join(self._services.names))
        return listed.version

    def _watch(self, version: str) -> None:
        """Follow changes until the watch ends."""
        query = self._services.path(watch=1, resourceVersion=version, timeoutSeconds=WATCH_S)
        try:
            with self._api.get(query, WATCH_BOUNDS) as response:
                for line in _lines(response):
                    kind = Event.model_validate_json(line).type
                    if kind == "ERROR":  # usually 410 Gone: the version is too old
                        return
                    if kind != "BOOKMARK":
                        self._apply(WatchedChange.model_validate_json(line))
        except DiscoveryFailed as error:
            if not error.is_gone:
                raise

    def _apply(self, change: WatchedChange) -> None:
        name = change.slice.name
        if change.type == "DELETED":
            self._slices.pop(name, None)
        else:
            self._slices[name] = change.slice
        self._publish()

    def _publish(self) -> None:
        specs = specs_of(self._slices.values())
        if specs == self.current:
            return
        log.info("%d replicas, were %d", len(specs), len(self.current))
        self.current = specs
        self._on_change()

    def _note_fault(self, error: Exception) -> None:
        fault = str(error) or repr(error)
        if not self._must_stop.is_set() and fault != self._fault:
            log.error("replicas are not followed, the last %d stay: %s", len(self.current), fault)
        self._fault = fault


def specs_of(slices: Iterable[EndpointSlice]) -> Specs:
    """Returns each replica once, in the order of URLs. Raises ValueError for a faulty label."""
    found: dict[str, UpstreamSpec] = {}  # keyed by pod, because each address family has a slice
    for each in sorted(slices, key=lambda each: (each.address_type, each.name)):
        port = _port(each.ports or ())
        if port is None or each.address_type not in ("IPv4", "IPv6"):
            continue
        for endpoint in each.endpoints or ():
            takes_requests = endpoint.ready is not False and not endpoint.terminating
            if takes_requests and endpoint.addresses:
                spec = _spec(endpoint.addresses[0], port, each.labels)
                pod = endpoint.pod or spec.url
                found[pod] = _joined(found[pod], spec) if pod in found else spec
    by_url = {spec.url: spec for spec in found.values()}
    return tuple(by_url[url] for url in sorted(by_url))


def _port(ports: Iterable[SlicePort]) -> int | None:
    """Returns the port called http, or the only one."""
    numbers = {port.name: port.port for port in ports}
    return numbers.get(PORT_NAME) or (next(iter(numbers.values())) if len(numbers) == 1 else None)


def _spec(address: str, port: int, labels: dict[str, str]) -> UpstreamSpec:
    ip, model = ipaddress.ip_address(address), labels.get(MODEL_LABEL)
    described = {
        "url": f"http://{host_and_port(str(ip), port)}",
        "weight": labels.get(WEIGHT_LABEL, "1"),
        "models": (model,) if model else (),
        "server": labels.get(SERVICE_LABEL, ""),
        "cents_per_hour": labels.get(COST_LABEL),
    }
    try:
        return validated(UpstreamSpec, described)
    except ValueError as error:
        service = labels.get(SERVICE_LABEL)
        raise ValueError(
            f"labels {COST_LABEL}, {WEIGHT_LABEL} of Service {service!r}: {error}"
        ) from None


def _joined(first: UpstreamSpec, second: UpstreamSpec) -> UpstreamSpec:
    """Joins the specs of a pod in two Services: it takes requests for the models of both."""
    is_for_any = not first.models or not second.models
    models = () if is_for_any else tuple(sorted({*first.models, *second.models}))
    return replace(first, models=models)


def _lines(response: HTTPResponse) -> Iterator[bytes]:
    max_bytes = WATCH_BOUNDS.max_bytes
    while line := response.readline(max_bytes + 1):
        if len(line) > max_bytes:
            raise DiscoveryFailed(f"an event has over {max_bytes} bytes")
        yield line
