from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_api.engine.cuda.runner import CudaRunner
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.kernels.build import compiled, units_of_tests
from inference_api.kernels.compilers import BuildFailed
from inference_api.loading.options import EngineOptions
from inference_api.runner import place_own_pages
from tests.inference_api.engine.tiny_models import CONTEXT, folder_of

with suppress(BuildFailed):  # tests that need it say so
    compiled(units_of_tests())

MAX_ROWS = 32
Tiny = Callable[[str], Path]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """For transformers' models too: threads that share tiny matrices wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def interpreter() -> Iterator[None]:
    """Triton's, without what takes most of its time: it puts operations of its own in the place of
    the language's at every call of a function in a kernel, though they stay there."""
    from triton.runtime.interpreter import InterpretedFunction, _patch_lang

    patched = set[str]()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn.__module__ not in patched:
            patched.add(self.fn.__module__)
            _patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "__call__", call)
        yield


@pytest.fixture(scope="session")
def tiny_model() -> Tiny:
    """Folders by the models' names."""
    return folder_of


NEEDS_CUDA = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no CUDA device here"
)


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(
    scope="session", params=["kernels", "torch", pytest.param("cuda", marks=NEEDS_CUDA)]
)
def engine(request: pytest.FixtureRequest) -> str:
    """What multiplies: the kernels, or torch on either device."""
    return str(request.param)


Runner = KernelRunner | CudaRunner


def make_runner(folder: Path, engine: str, dtype: str, max_rows: int) -> Runner:
    options = EngineOptions(
        device="cuda" if engine == "cuda" else "cpu",
        dtype=dtype,
        max_rows=max_rows,
        max_seq_len=CONTEXT,
    )
    runner = (KernelRunner if engine == "kernels" else CudaRunner)(folder, options)
    runner.load()
    place_own_pages(runner)
    return runner


@pytest.fixture(scope="session")
def loaded(tiny_model: Tiny, engine: str) -> Callable[[str], Runner]:
    """A loaded float32 runner by model name, each made once per engine."""

    @cache
    def load(name: str) -> Runner:
        runner = make_runner(tiny_model(name), engine, "float32", MAX_ROWS)
        if engine == "cuda":
            runner.warm_up()  # captures the steps
        return runner

    return load
