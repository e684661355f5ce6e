"""Who may ask for what: the table of routes, the form of paths, and a real API behind it all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from inference_api.inference_api_server import create_server
from inference_api.settings import Settings
from lab.kit.servers import MOCK_APP, ServedApi
from optimizer.settings import Settings as OptimizerSettings
from proxy.access import roles
from proxy.access.auth import claimed_role
from proxy.access.roles import (
    METHODS,
    ROLE_BY_ROUTE,
    Role,
    allowed_methods,
    needed_role,
    plain_path,
)
from proxy.clients import request_head
from proxy.errors import BadRequest
from tests.forked import served
from tests.proxy.support import (
    DEADLINE_S,
    ProxyProcess,
    ScriptedUpstream,
    bearer,
    make_token,
    running_proxy,
)
from weights.settings import Settings as WeightsSettings

POLICY = """
teams:
  ops: {role: operator}
  demoted: {role: team}
"""


def routes_of_the_api(folder: Path, is_stateful: bool) -> set[str]:
    """All there are: some are only there where a model is split."""
    optimizer = OptimizerSettings(stateful=is_stateful, store_path=folder / "optimizer.db")
    app = create_server(
        Settings(split=(2, 3)), optimizer, WeightsSettings(db_path=folder / "weights.db")
    )
    document: Any = app.test_client().get("/openapi.json").get_json()
    return {f"{verb.upper()} {path}" for path, verbs in document["paths"].items() for verb in verbs}


@pytest.mark.parametrize("is_stateful", [True, False])
def test_every_route_of_the_api_has_a_line_in_the_table(tmp_path: Path, is_stateful: bool) -> None:
    without_line = routes_of_the_api(tmp_path, is_stateful) - ROLE_BY_ROUTE.keys()
    assert without_line == set(), "say in proxy/access/roles.py whom they are open to"


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("POST", "/v1/chat/completions", Role.TEAM),
        ("POST", "/v1/responses", Role.TEAM),
        ("POST", "/v1/responses/compact", Role.TEAM),
        ("POST", "/v1/messages/count_tokens", Role.TEAM),
        ("POST", "/inference/any/model", Role.TEAM),
        ("HEAD", "/v1/models", Role.TEAM),
        ("HEAD", "/", Role.TEAM),
        ("GET", "/", Role.VIEWER),
        ("HEAD", "/state", Role.VIEWER),
        ("POST", "/api/event_logging/batch", Role.TEAM),
        ("POST", "/api/other", Role.OPERATOR),
        ("GET", "/state", Role.VIEWER),
        ("POST", "/whatif", Role.VIEWER),
        ("POST", "/howmany", Role.VIEWER),
        ("PUT", "/state", Role.OPERATOR),
        ("DELETE", "/weights/sessions/a", Role.OPERATOR),
        ("GET", "/removeServer/a/b", Role.OPERATOR),
        ("GET", "/v1/chat/completions", Role.OPERATOR),
        ("POST", "/v1/models", Role.OPERATOR),
        ("OPTIONS", "/v1/models", Role.OPERATOR),
        ("POST", "/v1/chat/completions/", Role.OPERATOR),
        ("POST", "/V1/chat/completions", Role.OPERATOR),
        ("GET", "/DRAIN", Role.OPERATOR),
        ("POST", "/inference/", Role.OPERATOR),
        ("POST", "/weights/sessions/a/observations/", Role.OPERATOR),
        ("GET", "/nowhere", Role.OPERATOR),
    ],
)
def test_what_has_no_line_is_the_operators(method: str, path: str, role: Role) -> None:
    assert needed_role(method, path) is role


@pytest.mark.parametrize(
    ("algorithm", "role_claim", "role"),
    [
        ("HS256", None, Role.OPERATOR),
        ("RS256", None, Role.TEAM),
        ("RS256", "role", Role.OPERATOR),
        ("HS256", "https://hearth/role", Role.VIEWER),
        ("RS256", "https://hearth/role", Role.VIEWER),
    ],
)
def test_role_of_an_identity_provider_counts_only_under_the_name_given_for_it(
    algorithm: str, role_claim: str | None, role: Role
) -> None:
    claims = {"role": "operator", "https://hearth/role": "viewer"}
    assert claimed_role(claims, algorithm, role_claim) is role


ODD_PATHS = [
    "//drain", "/v1//models", "/./drain", "/v1/models/../drain", "/v1/models/..", "/v1/.",
    "/inference/x/%2e%2e/%2e%2e/drain", "/inference/x/%2E./drain", "/inference%2f..%2fdrain",
    "/inference/..;/drain", "/inference/..;a=b/drain", "/v1/models/.;x", "/inference/x\\..\\drain",
    "/inference/%5c..%5cdrain", "/v1/models/%00", "/v1/models/x%0d%0aX-Team-Id:evil",
    "/inference/%252e%252e/drain", "/drain%252f", "/v1/models/%", "/v1/models/%zz", "/v1/models/%2",
    "/v1/models/%ff", "/v1/models/%c0%ae%c0%ae/x", "/v1/models/%7f", "%2fdrain/..",
    "/v1/models/x%2f%2fy",
]  # fmt: skip


@pytest.mark.parametrize("target", ODD_PATHS)
def test_path_that_servers_may_read_in_two_ways_is_refused(target: str) -> None:
    with pytest.raises(BadRequest, match="not in its plain form"):
        plain_path(target + "?a=b")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/explain/meta-llama%2FLlama-3?a=/../b//c", "/explain/meta-llama/Llama-3"),
        ("/getServer/100%25", "/getServer/100%"),
        ("/getServer/caf%C3%A9%20.x", "/getServer/café .x"),
        ("/v1/models/...", "/v1/models/..."),
        ("/any;x=1", "/any;x=1"),
        ("/v1/models/?a=b/", "/v1/models"),
        ("/", "/"),
    ],
)
def test_plain_path_is_decoded_once(target: str, path: str) -> None:
    assert plain_path(target) == path


@given(st.text(alphabet="/.%;2eEfF5cC0adrinb\\", max_size=24))
def test_no_plain_path_has_another_one_in_it(rest: str) -> None:
    try:
        path = plain_path("/" + rest)
    except BadRequest:
        return
    segments = [segment.partition(";")[0] for segment in path.split("/")[1:]]
    assert not {".", ".."} & set(segments)
    assert "" not in path.split("/")[1:-1]
    assert "\\" not in path


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    """Its optimizer is stateful, so that it has all routes."""
    folder = tmp_path_factory.mktemp("api")
    settings: dict[str, Any] = {
        "OPTIMIZER_STATEFUL": "true",
        "OPTIMIZER_STORE_PATH": folder / "optimizer.db",
    }
    with served(folder / "log", MOCK_APP, **settings) as api:
        yield api


@pytest.fixture(scope="module")
def door(api: ServedApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with running_proxy(tmp_path_factory.mktemp("door"), api.url) as process:
        yield process


def ask(door: ProxyProcess, route: str, **claims: object) -> requests.Response:
    method, _, path = route.partition(" ")
    path = path.replace("{", "").replace("}", "")
    body: dict[str, Any] = {"json": {}} if method in ("POST", "PUT") else {}
    return requests.request(
        method, door.url + path, headers=bearer(**claims), timeout=DEADLINE_S, **body
    )


def test_each_role_reaches_its_routes_and_no_others(door: ProxyProcess, tmp_path: Path) -> None:
    routes = routes_of_the_api(tmp_path, is_stateful=True) | ROLE_BY_ROUTE.keys()
    for route in sorted(routes - {"POST /drain"}):
        needed = ROLE_BY_ROUTE.get(route, Role.OPERATOR)
        for role in Role:
            reply = ask(door, route, role=str(role))
            is_refused = reply.status_code == 403
            assert is_refused == (role < needed), (route, role, reply.text)
            if is_refused:
                assert reply.json()["error"]["code"] == "role_needed"
                assert f"needs the role '{needed}'" in reply.json()["message"]


def test_team_finds_no_way_around_the_table(door: ProxyProcess, api: ServedApi) -> None:
    told = {"session_id": "theirs", "number_of_nodes": 2, "max_weightings": [1.0, 1.0]}
    told |= {"weights": [0.5, 0.5], "performance_metric": 1.0}
    requests.post(f"{api.url}/weights_update", json=told, timeout=DEADLINE_S).raise_for_status()
    before = requests.get(f"{api.url}/state", timeout=DEADLINE_S).json()
    head = b"%b %b HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer %b\r\nConnection: close\r\n\r\n"
    token = make_token(role="team").encode()
    closed = [b"/drain", b"/state", b"/metrics", b"/weights/sessions/theirs", b"/removeServer/x"]
    closed += [b"/drain?x=/v1/models", b"/drain;/v1/models", b"/%64rain", b"/v1/models%3f/../drain"]
    odd = [target.encode() for target in ODD_PATHS if target.startswith("/")]
    for target in closed + odd:
        for method in (b"GET", b"POST", b"DELETE", b"PUT", b"PATCH", b"OPTIONS", b"HEAD"):
            answer = door.raw(head % (method, target, token))
            is_unknown = answer[9:22] == b"404 Not Found"  # the API's own is in capitals
            is_refused = answer[9:12] in (b"400", b"403", b"405")
            assert is_refused or is_unknown, (method, target, answer[:200])
    assert api.state()["status"] == "ready"
    assert requests.get(f"{api.url}/state", timeout=DEADLINE_S).json() == before
    kept = requests.get(f"{api.url}/weights/sessions/theirs", timeout=DEADLINE_S)
    assert kept.status_code == 200


@given(st.sampled_from(sorted(ROLE_BY_ROUTE)), st.sampled_from([*METHODS, "PATCH", "OPTIONS"]))
def test_allowed_methods_are_those_with_a_line(route: str, method: str) -> None:
    path = route.partition(" ")[2].replace("{", "").replace("}", "")
    lines = {f"{method} {path}", f"GET {path}"} if method == "HEAD" else {f"{method} {path}"}
    has_line = not lines.isdisjoint(
        each.replace("{", "").replace("}", "") for each in ROLE_BY_ROUTE
    )
    assert has_line <= (method in allowed_methods(path))
    assert allowed_methods(f"/nowhere{path}") == []


def test_a_wrong_method_is_405_and_an_unknown_path_stays_closed(door: ProxyProcess) -> None:
    for line, allow in (
        ("GET /v1/chat/completions", "POST"),
        ("PUT /v1/chat/completions/", "POST"),
        ("DELETE /v1/models/a/b", "GET, HEAD"),
        ("POST /state", "GET, HEAD, PUT"),
        ("GET /weights_log", "POST"),
    ):
        reply = ask(door, line, role="team")
        method, _, path = line.partition(" ")
        assert (reply.status_code, reply.headers["Allow"]) == (405, allow), line
        assert f"{method} {path.rstrip('/')}: Method Not Allowed; send {allow}." in reply.text
    for line in ("GET /V1/chat/completions", "POST /v1/files", "PUT /nowhere", "GET /v1"):
        for role in ("team", "viewer"):
            reply = ask(door, line, role=role)
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_route")
            assert f"{line} is not known here; a team's routes are /v1/completions, " in reply.text
        assert ask(door, line, role="operator").json()["error"]["code"] == "not_found", line
    assert ask(door, "GET /state", role="team").status_code == 403


def test_refusal_by_role_is_in_the_audit(door: ProxyProcess) -> None:
    ask(door, "GET /dashboard/state", role="team", token_id="curious")
    line = door.audit_with(token_id="curious")
    assert (line["status"], line["outcome"]) == (403, "refused")
    assert "needs the role 'viewer'" in str(line["reason"])


@pytest.mark.parametrize(
    ("origin", "method", "path", "is_allowed"),
    [
        ("http://localhost:5173", "POST", "/v1/chat/completions", True),
        ("http://127.0.0.1", "GET", "/v1/models", True),
        ("http://localhost.evil.com", "POST", "/v1/chat/completions", False),
        ("http://localhost:5173", "POST", "/drain", False),
        ("http://localhost:5173", "GET", "/state", False),
        ("http://localhost:5173", "PUT", "/state", False),
        ("http://localhost:5173", "POST", "/v1/chat/../../drain", False),
    ],
)
def test_local_pages_may_do_what_teams_may(
    door: ProxyProcess, origin: str, method: str, path: str, is_allowed: bool
) -> None:
    """Whatever their token opens."""
    head = (
        f"{{}} {path} HTTP/1.1\r\nHost: p\r\nOrigin: {origin}\r\nConnection: close\r\n"
        f"Authorization: Bearer {make_token(role='viewer')}\r\n{{}}\r\n"
    )
    asks_first = f"Access-Control-Request-Method: {method}\r\n"
    answer = door.raw(head.format("OPTIONS", asks_first).encode())
    assert answer.startswith(b"HTTP/1.1 204") == is_allowed
    for text in (answer, door.raw(head.format(method, "Content-Length: 0\r\n").encode())):
        allowed = f"Access-Control-Allow-Origin: {origin}\r\n".encode()
        assert (allowed in text) == is_allowed


@pytest.fixture(scope="module")
def ruled(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    folder = tmp_path_factory.mktemp("ruled")
    (folder / "policy.yaml").write_text(POLICY)
    with running_proxy(folder, upstream.url, POLICY_FILE=str(folder / "policy.yaml")) as process:
        yield process


@pytest.mark.parametrize(
    ("team", "claimed", "status"),
    [
        ("ops", None, 200),
        ("demoted", "operator", 403),
        ("unnamed", "operator", 200),
        ("unnamed", "viewer", 403),
        ("unnamed", "root", 403),
        ("unnamed", ["operator"], 403),
        ("unnamed", {"operator": True}, 403),
        ("unnamed", 2, 403),
        ("unnamed", "OPERATOR", 403),
    ],
)
def test_policy_file_decides_about_a_role_and_else_the_token(
    ruled: ProxyProcess, team: str, claimed: object, status: int
) -> None:
    assert ask(ruled, "POST /drain", team_id=team, role=claimed).status_code == status


def test_what_strangers_send_is_kept_only_where_it_is_short() -> None:
    """Thousands of paths or names of 64 KiB would fill the memory."""
    kept = (roles._decoded, roles._needed_role, request_head._key_of)

    def send(padding: str) -> list[int]:
        head = f"GET /v1/models/{padding} HTTP/1.1\r\nHost: h\r\nX-{padding}: 1\r\n\r\n"
        found: list[request_head.RequestHead] = []
        request_head.RequestReader(found.append, lambda _: None).feed(head.encode())
        assert found[0].fields.get(f"x-{padding}") == "1"
        assert needed_role("GET", plain_path(found[0].target)) is Role.TEAM
        return [each.cache_info().currsize for each in kept]

    before = send("")
    assert send("x" * 60) == [size + 1 for size in before]
    assert send("x" * 1000) == [size + 1 for size in before]
