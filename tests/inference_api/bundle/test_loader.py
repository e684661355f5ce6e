"""The loader thread tells clients nothing of a fault that nobody has foreseen."""

from types import SimpleNamespace
from typing import cast

import pytest

from inference_api.bundle.loader import LoadFailed, MemberLoader
from inference_api.core.loaded_model import LoadedModel
from inference_api.model_loading import LoadableModel


class Broken:
    served = SimpleNamespace(name="a")

    def is_packed(self) -> bool:
        return True

    def stamp(self) -> list[object]:
        return []

    def load(self) -> LoadedModel:
        raise RuntimeError("secret of this test")

    def unload(self) -> None:
        """It holds nothing."""


def test_reason_of_an_unforeseen_fault_tells_clients_nothing_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    event = MemberLoader({"a": cast(LoadableModel, Broken())}, lambda: None)._load("a")
    assert isinstance(event, LoadFailed)
    assert event.reason == "RuntimeError; the server's log has the details"
    assert "secret of this test" in caplog.text
