"""No setting of the surrounding shell reaches a test."""

import pytest

from inference_api.settings import Settings


@pytest.fixture(autouse=True)
def _without_settings_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, field in Settings.model_fields.items():
        monkeypatch.delenv((field.alias or name).upper(), raising=False)
