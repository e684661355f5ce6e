import os
from functools import cache

import pytest

from inference_api.kernels.library import Kernels, KernelsUnavailable, supported_variants


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`kernels`: every variant this processor has, on two threads."""
    if "kernels" not in metafunc.fixturenames:
        return
    try:
        variants = supported_variants()
    except KernelsUnavailable as error:
        if os.environ.get("CI"):
            raise
        skipped = pytest.param(None, marks=pytest.mark.skip(reason=f"no kernels: {error}"))
        metafunc.parametrize("kernels", [skipped])
        return
    metafunc.parametrize("kernels", variants, indirect=True)


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return on_two_threads(request.param)


@cache
def on_two_threads(variant: str) -> Kernels:
    return Kernels(2, variant)
