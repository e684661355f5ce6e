from functools import cache

import pytest

from inference_api.kernels.library import Kernels, supported_variants


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`kernels`: every variant this processor has, on two threads."""
    if "kernels" in metafunc.fixturenames:
        metafunc.parametrize("kernels", supported_variants(), indirect=True)


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return on_two_threads(request.param)


@cache
def on_two_threads(variant: str) -> Kernels:
    return Kernels(2, variant)
