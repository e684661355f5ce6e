"""The optimizer's service, as the tests of benchmarking have it."""

from tests.benchmarking.conftest import optimizer_url

__all__ = ["optimizer_url"]
