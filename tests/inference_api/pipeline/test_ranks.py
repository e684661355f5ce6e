"""What keeps ranks from serving a model together, and what rank 0 says of it."""

from functools import partial
from threading import Thread

import pytest

from inference_api.errors import StartupError
from inference_api.loading.options import EngineOptions
from inference_api.pipeline.rank_runners import part_runners
from inference_api.pipeline.rank_worker import RankWorker
from inference_api.pipeline.ranks import (
    RankSettings,
    equal_split,
    load_rank_settings,
    local_rank,
    resolved,
)
from inference_api.pipeline.ring import Ring, RingBroken
from inference_api.pipeline.runner import PipelineRunner
from inference_api.preflight import check_start
from inference_api.runner import RowStep, place_own_pages
from inference_api.settings import Settings
from inference_api.settings.model import EMBEDDED_MODEL
from tests.inference_api.conftest import Tiny
from tests.inference_api.pipeline.rings import make_pipeline
from tests.ports import free_port

OPTIONS = EngineOptions(device="cpu", max_rows=2, max_seq_len=64)


def test_equal_split_gives_the_first_ranks_more() -> None:
    assert equal_split(32, 3) == (11, 11, 10)
    assert resolved("auto", 5, 2) == (3, 2)
    assert resolved((1, 4), 5, 2) == (1, 4)


@pytest.mark.parametrize(
    ("split", "fault"),
    [
        ((2, 2), "SPLIT=2,2 has 4 layers, but the model has 5"),
        ((2, 2, 1), "SPLIT=2,2,1 is for 3 ranks, but 2 were started"),
        ((5, 0), "SPLIT=5,0 leaves a rank without layers"),
    ],
)
def test_split_that_does_not_fit_is_refused(split: tuple[int, ...], fault: str) -> None:
    with pytest.raises(StartupError, match=fault):
        resolved(split, 5, 2)


def test_more_ranks_than_layers_are_refused() -> None:
    with pytest.raises(StartupError, match="leaves a rank without layers; start fewer ranks"):
        equal_split(2, 3)


def test_rank_of_another_model_does_not_serve(tiny_model: Tiny) -> None:
    """Whose hidden size is the same: nothing else would tell."""
    port, failures = free_port(), []

    def work() -> None:
        ranks = RankSettings(rank=1, world_size=2, master_port=port)
        ring = Ring.join(ranks, 64, 60.0)
        other = part_runners(tiny_model("qwen3"), OPTIONS, local_ranks=1)
        try:
            RankWorker(ring, other).run()
        except StartupError as error:
            failures.append(str(error))

    thread = Thread(target=work)
    thread.start()
    runner = PipelineRunner(
        part_runners(tiny_model("llama"), OPTIONS, local_ranks=1),
        (1, 1),
        partial(Ring.join, RankSettings(rank=0, world_size=2, master_port=port), timeout_s=60.0),
    )
    with pytest.raises(RingBroken, match="lost its neighbour 1"):
        runner.load()
    runner.close()
    thread.join()
    [failure] = failures
    assert "Rank 1 has another model than rank 0" in failure


def test_silence_is_broken_in_time(tiny_model: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_pipeline(tiny_model("llama"), OPTIONS, (1, 1))
    runner.load()
    place_own_pages(runner)
    runner.step([RowStep(0, 0, [1, 2, 3])])
    sent_at_s = runner._current_ring.sent_at_s
    assert not runner.idle()
    assert runner._current_ring.sent_at_s == sent_at_s
    runner._current_ring.sent_at_s -= runner._current_ring.timeout_s
    assert not runner.idle()
    assert runner._current_ring.sent_at_s >= sent_at_s
    runner.close()
    runner.close()


def test_rank_0_leaves_torchruns_port_to_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in local_rank(rank=1, num_ranks=2, port=29500).items():
        monkeypatch.setenv(name, value)
    assert load_rank_settings().meeting_place == ("127.0.0.1", 29500)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert load_rank_settings().meeting_place == ("127.0.0.1", 29501)


@pytest.mark.parametrize(
    ("settings", "environment", "fault"),
    [
        ({"split": "2,3"}, {}, "SPLIT needs 2 to 256 ranks"),
        ({"split": "2,3"}, {"RANK": "0", "WORLD_SIZE": "1"}, "SPLIT needs 2 to 256 ranks"),
        ({"split": "2,2"}, {"RANK": "0", "WORLD_SIZE": "2"}, "the model has 5"),
        ({"split": "2,3"}, {"RANK": "0", "WORLD_SIZE": "3"}, "but 3 were started"),
        ({"split": "auto"}, {"RANK": "0", "WORLD_SIZE": "6"}, "leaves a rank without layers"),
        (
            {"split": "2,3", "models": [{"model": str(EMBEDDED_MODEL)}]},
            {"RANK": "0", "WORLD_SIZE": "2"},
            "SPLIT is for one model; unset MODELS",
        ),
    ],
)
def test_split_that_cannot_be_served_is_a_fault_before_there_is_a_worker(
    settings: dict[str, object],
    environment: dict[str, str],
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StartupError, match=fault):
        check_start(Settings.model_validate({**settings, "service_port": free_port()}), True)


def test_split_that_can_be_served_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    for split in ("2,3", "auto"):
        check_start(Settings.model_validate({"split": split, "service_port": free_port()}), True)
