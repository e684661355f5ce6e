"""Settings: defaults, the environment, the command line, and what is refused."""

import re
from pathlib import Path

import pytest

from proxy.access.policy import parse_policy
from proxy.errors import StartupError
from proxy.settings import Settings
from proxy.upstreams.routes import parse_routes
from proxy.upstreams.specs import parse_upstreams
from tests.proxy.support import ROOT

DOCUMENT = ROOT / "docs" / "proxy.md"
SECRET = "x" * 32


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


def load(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Settings:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Settings.load()


def faults(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    with pytest.raises(StartupError) as caught:
        load(monkeypatch, **environment)
    return str(caught.value)


def test_a_secret_is_all_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(monkeypatch, JWT_SECRET=SECRET, JWT_SECRET_PREVIOUS="")
    assert (settings.proxy_host, settings.proxy_port) == ("127.0.0.1", 1223)
    assert settings.upstream == "http://127.0.0.1:7000"
    assert settings.secrets == (SECRET,)
    assert settings.proxy_requests >= 500


def test_without_a_secret_it_says_how_to_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "generate-secret" in faults(monkeypatch)


def test_overrides_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JWT_SECRET", SECRET)
    monkeypatch.setenv("PROXY_PORT", "1000")
    assert Settings.load(proxy_port=2000).proxy_port == 2000


def test_secrets_are_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(monkeypatch, JWT_SECRET=SECRET, REDIS_URL="redis://:password@r:6379")
    assert SECRET not in repr(settings) + str(settings.model_dump())
    assert "password" not in repr(settings)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org"])
def test_short_secret_is_refused_beyond_loopback(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    assert "under 32 bytes" in faults(monkeypatch, JWT_SECRET="short", PROXY_HOST=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_short_secret_is_a_warning_on_loopback(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    settings = load(monkeypatch, JWT_SECRET="short", PROXY_HOST=host)
    assert settings.weak_secrets == ("JWT_SECRET",)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"JWT_ALGORITHMS": " "}, "JWT_ALGORITHMS is empty"),
        ({"JWT_ALGORITHMS": "none"}, "'none' is not one of"),
        ({"JWT_ALGORITHMS": "RS256"}, "set JWKS_FILE or JWKS_URL"),
        ({"JWKS_URL": "https://x"}, "add its algorithm"),
        ({"PROXY_PORT": "0"}, "PROXY_PORT='0'"),
        ({"PROXY_PORT": "65536"}, "PROXY_PORT='65536'"),
        ({"CONNECT_TIMEOUT": "0"}, "CONNECT_TIMEOUT='0'"),
        ({"LOG_FORMAT": "xml"}, "LOG_FORMAT='xml'"),
        ({"POLICY_FILE": "/nowhere"}, "POLICY_FILE='/nowhere'"),
        ({"PROXY_REQUESTS": "many"}, "PROXY_REQUESTS='many'"),
    ],
)
def test_faulty_values_are_named(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    assert message in faults(monkeypatch, JWT_SECRET=SECRET, **environment)


def test_several_processes_with_limits_need_a_place_to_count_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text("teams: {}")
    several = {"JWT_SECRET": SECRET, "PROXY_PROCESSES": "2"}
    limited = several | {"POLICY_FILE": str(tmp_path / "policy.yaml")}
    assert "set REDIS_URL" in faults(monkeypatch, **limited)
    assert load(monkeypatch, **limited, REDIS_URL="redis://r").proxy_processes == 2
    monkeypatch.delenv("POLICY_FILE")
    monkeypatch.delenv("REDIS_URL")
    assert load(monkeypatch, **several).proxy_processes == 2


def test_faults_within_and_between_fields_are_listed_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = faults(monkeypatch, PROXY_PORT="x", LOG_LEVEL="LOUD", JWT_ALGORITHMS="HS256,XX")
    assert all(part in text for part in ("PROXY_PORT", "LOG_LEVEL", "'XX'", "JWT_SECRET"))


def test_replicas_have_one_source(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"UPSTREAMS_FILE": str(DOCUMENT), "UPSTREAMS_SERVICE": "hearth/chat"}
    assert "both set; keep one" in faults(monkeypatch, JWT_SECRET=SECRET, **both)


def test_public_keys_alone_need_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(monkeypatch, JWT_ALGORITHMS="RS256 ES256", JWKS_URL="https://idp.test/jwks")
    assert settings.jwt_algorithms == ("RS256", "ES256")
    assert settings.secrets == ()


def test_every_variable_is_documented_with_its_default() -> None:
    rows = re.findall(r"^\| `([A-Z0-9_]+)` \| (?:`(.*?)`)? ?\|", DOCUMENT.read_text(), re.MULTILINE)
    documented = dict(rows)
    assert sorted(documented) == sorted(name.upper() for name in Settings.model_fields)
    for name, item in Settings.model_fields.items():
        default = item.default
        if isinstance(default, tuple):
            default = ",".join(default)
        elif isinstance(default, bool):
            default = str(default).lower()
        elif isinstance(default, float):
            default = f"{default:g}"
        assert documented[name.upper()] == ("" if default is None else str(default)), name


def test_example_files_are_good() -> None:
    deploy = ROOT / "deploy"
    assert parse_upstreams((deploy / "upstreams.example.yaml").read_text())
    assert parse_routes((deploy / "routes.example.yaml").read_text()).of("chat")
    policy = parse_policy((deploy / "policy.example.yaml").read_text())
    assert policy.for_team("students").max_concurrent == 1


def test_an_audit_file_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path, tmp_path / "none" / "audit.jsonl"):
        fault = faults(monkeypatch, JWT_SECRET=SECRET, AUDIT_FILE=str(path))
        assert f"AUDIT_FILE='{path}': cannot be written" in fault
