"""A bundle with DEVICE=cuda, by the real loader thread and real weights, in slots of the CPU."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inference_api.bundle.check import Validation, check_bundle
from inference_api.bundle.members import MemberState
from inference_api.engine import devices
from inference_api.settings import EMBEDDED_MODEL, Settings
from tests.inference_api.bundle.test_bundle import Serving

ROWS = 4
FILE = f"""
version: 1
memory_limit: 1GiB
fast_memory_limit: {{limit}}
patience_s: 0.1
min_residence_s: 0
experts:
  - {{{{name: eight, source: {EMBEDDED_MODEL}, quantisation: int8, \
context: 128, load: start, rows: {{{{max: 2}}}}}}}}
  - {{{{name: plain, source: {EMBEDDED_MODEL}, quantisation: none, context: 64}}}}
  - {{{{name: pair, source: {EMBEDDED_MODEL}, quantisation: none, context: 64, \
draft: {{{{source: {EMBEDDED_MODEL}, tokens: 2}}}}}}}}
"""
ASKED = [("plain", "How many days has May?"), ("eight", "Say 17 + 25."), ("pair", "Hello")]


@pytest.fixture
def _cpu_as_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "CUDA", "cpu")
    monkeypatch.setattr(devices, "_is_on_cuda", lambda asked: asked == "cuda")


def settings_of(
    folder: Path, limit: object, *, change: tuple[str, str] = ("", ""), **others: object
) -> Settings:
    file = folder / "bundle.yaml"
    file.write_text(FILE.format(limit=limit).replace(*change))
    values = {"bundle": str(file), "device": "cuda", "dtype": "float32", "user_rows": ROWS}
    return Settings.model_validate({**values, "packed_folder": str(folder / "packed"), **others})


def checked(settings: Settings) -> Validation:
    assert settings.bundle is not None
    return check_bundle(settings.bundle, settings)


def need_bytes(settings: Settings) -> tuple[int, int]:
    """Of one slot and of a step."""
    used = checked(settings).utilization
    assert used is not None
    return used.fast_memory.need_bytes - used.scratch_bytes, used.scratch_bytes


@pytest.fixture
def serving(tmp_path: Path, _cpu_as_cuda: None) -> Iterator[Serving]:
    """With two slots for three experts."""
    slot, scratch = need_bytes(settings_of(tmp_path, "1GiB"))
    serving = Serving(settings_of(tmp_path, 2 * slot + scratch))
    serving.start()
    yield serving
    serving.backend.stop()


def test_experts_take_turns_in_slots_and_answer_as_if_they_were_alone(
    serving: Serving, tmp_path: Path
) -> None:

    def ask(of: tuple[str, str]) -> tuple[int, ...]:
        name, prompt = of
        return serving.ask(name, prompt, max_tokens=6).token_ids

    alone = {each: ask(each) for each in ASKED}
    assert len(alone["pair", "Hello"]) == 6
    with ThreadPoolExecutor(6) as users:
        assert [*users.map(ask, ASKED * 2)] == [alone[each] for each in ASKED * 2]
    members = serving.bundle.snapshot.members
    assert sum(each.num_loads for each in members.values()) > 3
    check_memory(serving, *need_bytes(settings_of(tmp_path, "1GiB")))


def check_memory(serving: Serving, slot_bytes: int, scratch_bytes: int) -> None:
    """The check foresees what the server counts: a slot each, with memory for all rows."""
    serving.ask("plain", "Hello", max_tokens=2)
    snapshot = serving.bundle.snapshot
    states = [each.state for each in snapshot.members.values()]
    assert states.count(MemberState.RESIDENT) == 2
    assert snapshot.used_bytes == 2 * slot_bytes
    held = snapshot.members["plain"]
    runner = serving.bundle._members["plain"].runner
    footprint = runner.footprint
    assert held.weights_bytes == footprint.weights_bytes
    assert held.cache_bytes == footprint.cache_bytes
    pages = serving.backend.models["plain"].rows.pages
    assert (pages.limit, pages.borrow) == (runner.layout.num_pages, None)


def test_slot_of_the_largest_is_what_one_expert_needs_and_each_pinned_one_more(
    tmp_path: Path,
) -> None:
    slot, scratch = need_bytes(settings_of(tmp_path, "1GiB"))
    assert checked(settings_of(tmp_path, slot + scratch)).valid
    for fault in checked(settings_of(tmp_path, slot + scratch - 1)).errors:
        assert "over by 1" in fault
    pinned = settings_of(tmp_path, "1GiB", change=("load: start", "pinned: true"))
    assert need_bytes(pinned) == (2 * slot, scratch)


@pytest.mark.parametrize(
    ("change", "others", "fault"),
    [
        (("", ""), {"kv_cache_dtype": "int4"}, "KV_CACHE_DTYPE=int4 is for the CPU"),
        (("load: start", "speculation: medusa"), {}, "Medusa heads are not there yet for a bundle"),
        (("load: start", "medusa_heads: x"), {}, "Medusa heads are not there yet for a bundle"),
    ],
)
def test_what_no_gpu_runs_is_refused(
    change: tuple[str, str], others: dict[str, str], fault: str, tmp_path: Path
) -> None:
    errors = checked(settings_of(tmp_path, "1GiB", change=change, **others)).errors
    assert errors
    assert all(fault in each for each in errors)
