from collections.abc import Callable
from functools import cache

import pytest

from tests.inference_api.speculation.decoding import Model


@pytest.fixture(scope="module")
def model_of() -> Callable[[str], Model]:
    """The embedded model by its form, each loaded once."""
    return cache(Model)
