"""Ranks whose memory differs have as many pages as the one with the least."""

from dataclasses import replace
from pathlib import Path

import pytest

from inference_api.engine.kernel_runner import KernelRunner
from inference_api.loading.checkpoint import load_config
from inference_api.loading.config import PAGE_TOKENS
from inference_api.loading.options import EngineOptions
from inference_api.pipeline.rank_runners import MakeRunner
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep, place_own_pages
from inference_api.settings import EMBEDDED_MODEL
from tests.inference_api.pipeline.rings import make_pipeline

OPTIONS = EngineOptions(device="cpu", max_rows=2, max_seq_len=1024)
GREEDY = Draw(SamplingParams(temperature=0.0), (1,), ())


@pytest.mark.parametrize(("first_pages", "other_pages"), [(20, 40), (40, 20), (None, 20)])
def test_ranks_have_the_pages_of_the_one_with_the_least(
    first_pages: int | None, other_pages: int
) -> None:
    num_layers = load_config(EMBEDDED_MODEL).num_layers
    page_bytes = KernelRunner(EMBEDDED_MODEL, OPTIONS).layout.page_bytes // num_layers
    first, others = (
        replace(OPTIONS, kv_cache_bytes=None if pages is None else pages * page_bytes * layers)
        for pages, layers in ((first_pages, 1), (other_pages, num_layers - 1))
    )
    runner = make_pipeline(EMBEDDED_MODEL, first, (1, num_layers - 1), others)
    runner.load()
    try:
        assert runner.layout.num_pages == 20
        assert runner.max_seq_len == 20 * PAGE_TOKENS
        runner.place(1, 0, 0, range(20))
        (result,) = runner.step([RowStep(1, runner.max_seq_len - 1, (5,), (GREEDY,))])
        assert len(result.drawn) == 1
    finally:
        runner.close()


class Full(KernelRunner):
    """One whose memory has nothing free, once it is full."""

    is_full = False

    def free_bytes(self) -> int | None:
        return 0 if Full.is_full else super().free_bytes()


def test_layers_that_do_not_fit_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(folder: Path, options: EngineOptions) -> MakeRunner:
        return lambda layers: Full(folder, options.with_layers(layers))

    runner = make_pipeline(EMBEDDED_MODEL, replace(OPTIONS, max_seq_len=64), (2, 2, 1), parts=parts)
    runner.load()
    try:
        place_own_pages(runner)
        step = [RowStep(0, 0, (5,), (GREEDY,))]
        drawn = runner.step(step)[0].drawn
        monkeypatch.setattr(Full, "is_full", True)
        for split in ((3, 1, 1), (1, 3, 1), (1, 2, 2)):  # each too much for another rank
            assert not runner.set_split(split)
            assert runner.split == (2, 2, 1)
            assert runner.step(step)[0].drawn == drawn
        monkeypatch.setattr(Full, "is_full", False)
        assert runner.set_split((1, 3, 1))
    finally:
        runner.close()
