"""Settings: defaults, faults that name everything wrong at once, and the page that lists them."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from inference_api.errors import StartupError
from inference_api.settings import Settings, load_settings

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def test_variables_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_ROWS", "8")
    monkeypatch.setenv("DRAIN_TIMEOUT", "2.5")
    monkeypatch.setenv("ROUTE_ALIASES", "one, two")
    monkeypatch.setenv("MODEL", "/models/some-model/")
    settings = load_settings()
    assert (settings.user_rows, settings.drain_timeout_s) == (8, 2.5)
    assert settings.served_names == ("some-model", "one", "two")


def test_threads_cover_rows_queue_and_control_routes() -> None:
    assert Settings().threads == 32 + 64 + 16


def test_every_fault_is_named_with_value_and_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_ROWS", "0")
    monkeypatch.setenv("DTYPE", "float64")
    monkeypatch.setenv("QUANTIZATION", "int3")
    with pytest.raises(StartupError) as caught:
        load_settings()
    message = str(caught.value)
    assert "USER_ROWS='0': input should be greater than or equal to 1" in message
    assert "DTYPE='float64'" in message
    assert "QUANTIZATION='int3'" in message


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Settings().user_rows = 3  # type: ignore[misc]


def test_secret_is_not_shown() -> None:
    assert "long enough to be" not in repr(Settings(jwt_secret="long enough to be a secret"))


def test_every_variable_is_documented_with_its_default() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    documented = {line.split("`")[1]: line for line in rows}
    for name, field in Settings.model_fields.items():
        variable = (field.alias or name).upper()
        assert variable in documented
        assert str(field.description) in documented[variable]
