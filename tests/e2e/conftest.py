"""A server whose streams wait for the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarking.serving import ServedApi, served


@pytest.fixture
def release_file(tmp_path: Path) -> Path:
    return tmp_path / "release"


@pytest.fixture
def held_api(tmp_path: Path, release_file: Path) -> Iterator[ServedApi]:
    """One row; sends the first token of a stream, and the others once `release_file` is there."""
    app = "tests.e2e.altered_servers:create_held_server()"
    with served(tmp_path / "log", app, USER_ROWS=1, RELEASE_FILE=release_file) as api:
        yield api
