"""The loader thread between its jobs: what it does unasked gives way, and cannot end it."""

from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from typing import cast

import pytest

from inference_api.scheduling.expert_loader import ExpertLoader, Loaded, LoadFailed
from inference_api.scheduling.loaded_model import LoadedModel
from inference_api.scheduling.model_loading import LoadableModel

MODEL = cast(LoadedModel, object())
TIMEOUT_S = 30.0


class Expert:
    """Checked by `check`, and loaded at once."""

    served = SimpleNamespace(name="a")

    def __init__(self, check: Callable[[Callable[[], None]], None]) -> None:
        self.check_packed = check

    def is_packed(self) -> bool:
        return True

    def stamp(self) -> list[object]:
        return []

    def load(self) -> LoadedModel:
        return MODEL


def loaded_by(expert: Expert, is_checked: Event) -> None:
    """Ask for it once it is checked, or about to be."""
    is_there = Event()
    loader = ExpertLoader({"a": cast(LoadableModel, expert)}, is_there.set)
    loader.start()
    try:
        assert is_checked.wait(TIMEOUT_S)
        loader.load("a")
        assert is_there.wait(TIMEOUT_S)
        assert loader.next_event() == Loaded("a", MODEL)
    finally:
        loader.stop()


def test_a_check_is_given_up_for_whom_somebody_waits() -> None:
    is_checked = Event()

    def check(go_on: Callable[[], None]) -> None:
        is_checked.set()
        while True:
            go_on()

    loaded_by(Expert(check), is_checked)


def test_a_check_that_fails_is_left_to_the_load(caplog: pytest.LogCaptureFixture) -> None:
    is_checked = Event()

    def check(go_on: Callable[[], None]) -> None:
        is_checked.set()
        raise OSError("the disk is gone")

    loaded_by(Expert(check), is_checked)
    assert "a cannot be checked: OSError('the disk is gone')" in caplog.text


def test_reason_of_an_unforeseen_fault_tells_clients_nothing_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Expert):
        def load(self) -> LoadedModel:
            raise RuntimeError("secret of this test")

        def unload(self) -> None:
            """It holds nothing."""

    expert = cast(LoadableModel, Broken(lambda go_on: None))
    event = ExpertLoader({"a": expert}, lambda: None)._load("a")
    assert isinstance(event, LoadFailed)
    assert event.reason == "RuntimeError; the server's log has the details"
    assert "secret of this test" in caplog.text
