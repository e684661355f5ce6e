"""Servers for several modules, and a server whose streams wait for the test."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from lab.kit.servers import MOCK_APP, ROOT, ServedApi, eventually
from lab.models.random_model import SHAPES, make_random_model
from tests.forked import served

SLOW = {"MOCK_TOKENS_PER_SECOND": 20}  # an answer of 900 tokens outlasts what a test does meanwhile


@pytest.fixture(scope="session")
def _model_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with served(tmp_path_factory.mktemp("model") / "log") as api:
        yield api


@pytest.fixture(scope="session")
def exact_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    """The embedded model in float32, as transformers computes what answers are compared with."""
    with served(tmp_path_factory.mktemp("exact") / "log", DTYPE="float32") as api:
        yield api


@pytest.fixture(scope="session")
def _mock_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with served(tmp_path_factory.mktemp("mock") / "log", MOCK_APP) as api:
        yield api


@pytest.fixture(scope="module")
def model_api(_model_api: ServedApi) -> Iterator[ServedApi]:
    """The embedded model, served as it is by default; idle when the module ends."""
    yield _model_api
    eventually(_model_api.is_idle)


@pytest.fixture(scope="module")
def mock_api(_mock_api: ServedApi) -> Iterator[ServedApi]:
    """The mock backend, served as it is by default; idle when the module ends."""
    yield _mock_api
    eventually(_mock_api.is_idle)


@pytest.fixture(scope="session")
def _slow_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with served(tmp_path_factory.mktemp("slow") / "log", MOCK_APP, **SLOW) as api:
        yield api


@pytest.fixture(scope="session")
def _narrow_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    log_path = tmp_path_factory.mktemp("narrow") / "log"
    with served(log_path, MOCK_APP, USER_ROWS=1, MAX_INPUT_QSIZE=1, **SLOW) as api:
        yield api


@pytest.fixture
def slow_api(_slow_api: ServedApi) -> Iterator[ServedApi]:
    """Twenty tokens a second in each row: for answers that must not end before the test is done."""
    yield _slow_api
    eventually(_slow_api.is_idle)


@pytest.fixture
def narrow_api(_narrow_api: ServedApi) -> Iterator[ServedApi]:
    """`slow_api` with one row and one place in the queue."""
    yield _narrow_api
    eventually(_narrow_api.is_idle)


@pytest.fixture(scope="session")
def _tools_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    folder = tmp_path_factory.mktemp("random")
    template = (ROOT / "tests" / "data" / "templates" / "hermes.jinja").read_text()
    make_random_model(SHAPES["tiny"], folder / "random", template)
    with served(folder / "log", MODEL=folder / "random") as api:
        yield api


@pytest.fixture(scope="module")
def tools_api(_tools_api: ServedApi) -> Iterator[ServedApi]:
    """A tiny model of random weights with a template that knows tools, called `random`."""
    yield _tools_api
    eventually(_tools_api.is_idle)


@pytest.fixture(scope="module")
def client(api: ServedApi) -> Iterator[openai.OpenAI]:
    """OpenAI's own client of the module's `api`."""
    with openai.OpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def release_file(tmp_path: Path) -> Path:
    return tmp_path / "release"


@pytest.fixture
def held_api(tmp_path: Path, release_file: Path) -> Iterator[ServedApi]:
    """One row; sends the first token of a stream, and the others once `release_file` is there."""
    app = "tests.e2e.altered_servers:create_held_server()"
    with served(tmp_path / "log", app, USER_ROWS=1, RELEASE_FILE=release_file) as api:
        yield api
