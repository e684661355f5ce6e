"""A small Kubernetes API server on a loopback port, for tests of what talks to one.

It keeps Deployments with their scale, Pods, EndpointSlices and autoscalers under resource versions,
lets them be listed, watched and patched, and does to order what servers do on bad days. What a
cluster's controllers and kubelets would do, `kubernetes_workloads.py` does.
"""

import copy
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]

NAMESPACE = "hearth"
GROUPS = {
    "deployments": "/apis/apps/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
    "horizontalpodautoscalers": "/apis/autoscaling/v2",
    "pods": "/api/v1",
}
PATH = re.compile(
    r"(?P<group>/apis?(?:/[a-z0-9.]+)?/v\d)/namespaces/(?P<namespace>[a-z0-9-]+)"
    r"/(?P<kind>[a-z]+)(?:/(?P<name>[a-z0-9.-]+)(?P<scale>/scale)?)?"
)
REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired"}
POLL_S = 0.05

Answer = Callable[["Handler"], None]


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    token: str | None
    body: Any = None

    def is_watch(self) -> bool:
        return "watch" in self.query


@dataclass
class Fault:
    """What the next requests that fit meet."""

    fits: Callable[[Request], bool]
    answer: Answer
    times: int


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class KubernetesApi:
    """Any thread. `on_change` is called after each write of a Deployment or its scale."""

    def __init__(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.is_stopping = threading.Event()
        self.on_change: Callable[[], None] = lambda: None
        self._objects: dict[str, dict[str, Object]] = {kind: {} for kind in GROUPS}
        self._events: list[tuple[int, str, str, Object]] = []
        self._version = 100
        self._oldest = 0
        self._changed = threading.Condition(threading.RLock())
        self._faults: list[Fault] = []
        self._watches: set[socket.socket] = set()
        self._server = Server(("127.0.0.1", port), Handler)
        self._server.api = self
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
            self.url = f"https://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,))
        self._thread.start()

    def stop(self) -> None:
        self.is_stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {}}],
        }
        path.write_text(json.dumps(document))
        return path

    def put(self, kind: str, item: Object) -> None:
        """Create or replace."""
        with self._changed:
            name = item["metadata"]["name"]
            event = "MODIFIED" if name in self._objects[kind] else "ADDED"
            self._objects[kind][name] = copy.deepcopy(item)
            self._note(kind, event, self._objects[kind][name])

    def remove(self, kind: str, name: str) -> None:
        with self._changed:
            self._note(kind, "DELETED", self._objects[kind].pop(name))

    def get(self, kind: str, name: str) -> Object:
        with self._changed:
            if name not in self._objects[kind]:
                raise Refused(404, f'{kind} "{name}" not found')
            return copy.deepcopy(self._objects[kind][name])

    def all(self, kind: str, selector: str = "") -> list[Object]:
        with self._changed:
            found = [self._objects[kind][name] for name in sorted(self._objects[kind])]
            return [copy.deepcopy(each) for each in found if selects(selector, each)]

    def fail(
        self, answer: Answer | int, *, method: str = "", path: str = "", watch: bool | None = None,
        times: int = 1,
    ) -> None:  # fmt: skip
        """Let the next requests that fit meet a fault."""

        def fits(request: Request) -> bool:
            is_kind = watch is None or request.is_watch() == watch
            return request.method.startswith(method) and path in request.path and is_kind

        self._faults.append(
            Fault(fits, refuse(answer) if isinstance(answer, int) else answer, times)
        )

    def heal(self) -> None:
        self._faults.clear()

    def forget_events(self) -> None:
        """Watches from versions before now are answered 410."""
        with self._changed:
            self._events.clear()
            self._oldest = self._version

    def cut_watches(self) -> None:
        for watch in list(self._watches):
            with suppress(OSError):
                watch.shutdown(socket.SHUT_RDWR)

    @property
    def num_watches(self) -> int:
        return len(self._watches)

    def take_fault(self, request: Request) -> Fault | None:
        with self._changed:
            for fault in self._faults:
                if fault.fits(request) and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def listed(self, kind: str, selector: str) -> Object:
        with self._changed:
            metadata = {"resourceVersion": str(self._version)}
            return {"kind": "List", "metadata": metadata, "items": self.all(kind, selector)}

    def scale_of(self, name: str) -> Object:
        deployment = self.get("deployments", name)
        replicas = deployment["spec"].get("replicas", 1)
        metadata = {
            key: deployment["metadata"][key] for key in ("name", "namespace", "resourceVersion")
        }
        return {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": metadata,
            "spec": {"replicas": replicas},
            "status": {"replicas": replicas},
        }

    def patch(self, kind: str, name: str, change: Object, *, is_scale: bool) -> Object:
        with self._changed:
            item = self.get(kind, name)
            expected = change.get("metadata", {}).get("resourceVersion")
            if expected not in (None, item["metadata"]["resourceVersion"]):
                raise Refused(409, f'{kind} "{name}": the object has been modified')
            if is_scale:
                change = {"spec": {"replicas": change["spec"]["replicas"]}}
            change = copy.deepcopy(change)
            change.get("metadata", {}).pop("resourceVersion", None)
            self.put(kind, merged(item, change))
        if kind == "deployments":
            self.on_change()
        return self.scale_of(name) if is_scale else self.get(kind, name)

    def events_after(
        self, version: int, kind: str, selector: str, timeout_s: float
    ) -> Iterator[Object | None]:
        """Yields events as they come; None at times, so that a reader notices its end."""
        ending_s = time.monotonic() + timeout_s
        with self._changed:
            if version < self._oldest:
                yield {"type": "ERROR", "object": status_of(410, "too old resource version")}
                return
        while not self.is_stopping.is_set() and time.monotonic() < ending_s:
            with self._changed:
                if self._version <= version:
                    self._changed.wait(POLL_S)
                fresh = [event for event in self._events if event[0] > version]
                version = max([version, *(event[0] for event in fresh)])
            for _, of_kind, event, item in fresh:
                if of_kind == kind and selects(selector, item):
                    yield {"type": event, "object": item}
            yield None

    def _note(self, kind: str, event: str, item: Object) -> None:
        self._version += 1
        item["metadata"].setdefault("namespace", NAMESPACE)
        item["metadata"]["resourceVersion"] = str(self._version)
        self._events.append((self._version, kind, event, copy.deepcopy(item)))
        self._changed.notify_all()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    api: KubernetesApi


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    @property
    def api(self) -> KubernetesApi:
        return self.server.api

    def do_GET(self) -> None:
        self._serve(lambda request, found: self._read(request, found))

    def do_PATCH(self) -> None:
        self._serve(lambda request, found: self._patch(request, found))

    def log_message(self, format: str, *args: Any) -> None: ...

    def answer(self, status: int, body: Object) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _serve(self, respond: Callable[[Request, re.Match[str]], None]) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length", 0))
        request = Request(
            self.command,
            parts.path,
            {key: values[0] for key, values in parse_qs(parts.query).items()},
            self.headers.get("Authorization"),
            json.loads(self.rfile.read(length)) if length else None,
        )
        self.api.requests.append(request)
        with suppress(ConnectionError):
            if fault := self.api.take_fault(request):
                fault.answer(self)
                return
            found = PATH.fullmatch(parts.path)
            try:
                if not found or GROUPS.get(found["kind"]) != found["group"]:
                    raise Refused(404, f"no such path: {parts.path}")
                respond(request, found)
            except Refused as refusal:
                self.answer(refusal.status, status_of(refusal.status, str(refusal)))

    def _read(self, request: Request, found: re.Match[str]) -> None:
        kind, selector = found["kind"], request.query.get("labelSelector", "")
        if found["scale"]:
            self.answer(200, self.api.scale_of(found["name"]))
        elif found["name"]:
            self.answer(200, self.api.get(kind, found["name"]))
        elif request.is_watch():
            self._watch(request.query, kind, selector)
        else:
            self.answer(200, self.api.listed(kind, selector))

    def _watch(self, query: Mapping[str, str], kind: str, selector: str) -> None:
        version, timeout_s = int(query["resourceVersion"]), float(query["timeoutSeconds"])
        self.begin_watch()
        self.api._watches.add(self.connection)
        try:
            for event in self.api.events_after(version, kind, selector, timeout_s):
                if event is not None:
                    self.chunk(json.dumps(event).encode() + b"\n")
            self.wfile.write(b"0\r\n\r\n")
        finally:
            self.api._watches.discard(self.connection)

    def begin_watch(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _patch(self, request: Request, found: re.Match[str]) -> None:
        kind, name = found["kind"], found["name"]
        expected = "application/strategic-merge-patch+json"
        if self.headers["Content-Type"] != expected:
            raise Refused(415, f"expected {expected}")
        is_scale = found["scale"] is not None
        self.answer(200, self.api.patch(kind, name, request.body, is_scale=is_scale))


def status_of(code: int, message: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "message": message,
        "reason": REASONS.get(code, "InternalError"),
        "code": code,
    }


def refuse(status: int) -> Answer:
    return lambda handler: handler.answer(status, status_of(status, "scripted refusal"))


def half(handler: Handler) -> None:
    """The head and a little of a long body, then nothing more."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"items": [{"metadata"')
    handler.close_connection = True


def garbage(handler: Handler) -> None:
    handler.answer(200, {"items": [["no object"]], "metadata": 3})


def hang(handler: Handler) -> None:
    """No answer before the server is stopped."""
    handler.api.is_stopping.wait(60)
    handler.close_connection = True


def reset(handler: Handler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    handler.close_connection = True
    handler.connection.close()


def merged(item: Any, change: Any) -> Any:
    """A strategic merge patch, as far as Deployments need it: lists of named things by name."""
    if isinstance(item, dict) and isinstance(change, dict):
        kept = {key: value for key, value in item.items() if key not in change}
        return kept | {key: merged(item.get(key), value) for key, value in change.items()}
    if isinstance(item, list) and isinstance(change, list):
        by_name = {each["name"]: each for each in item}
        for each in change:
            by_name[each["name"]] = merged(by_name.get(each["name"], {}), each)
        return list(by_name.values())
    return change


def selects(selector: str, item: Object) -> bool:
    """`key`, `key=value` and `key in (a,b)`, joined by commas."""
    labels = item["metadata"].get("labels", {})
    for term in re.findall(r"[^,()]+(?:\([^)]*\))?", selector):
        key, _, values = term.partition(" in ")
        if values:
            if labels.get(key) not in values.strip("()").split(","):
                return False
        elif "=" in term:
            key, _, value = term.partition("=")
            if labels.get(key) != value:
                return False
        elif term not in labels:
            return False
    return True
