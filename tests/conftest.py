"""For all tests: no setting of the surrounding shell, and a real Redis where one is needed."""

import gc
import logging
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest
import redis
from pydantic import AliasChoices
from pydantic_settings import BaseSettings
from werkzeug.routing import Rule

from inference_api.loading import hardware
from inference_api.settings import Settings as ApiSettings
from lab.kit.servers import TIMEOUT_S
from optimizer.settings import Settings as OptimizerSettings
from tests.ports import free_port
from tests.workers import pytest_addoption, pytest_runtestloop, unit_of
from weights.settings import Settings as WeightsSettings

__all__ = ["pytest_addoption", "pytest_runtestloop"]

if not hardware.has_nvidia_driver():  # then Triton's kernels run too, step by step in Python
    os.environ["TRITON_INTERPRET"] = "1"

pytest.register_assert_rewrite("tests.e2e.browser.pages")  # its asserts show what they compared

SETTINGS: tuple[type[BaseSettings], ...] = (ApiSettings, OptimizerSettings, WeightsSettings)
for settings in SETTINGS:
    for name, field in settings.model_fields.items():
        alias = field.validation_alias or name
        for choice in alias.choices if isinstance(alias, AliasChoices) else [alias]:
            os.environ.pop(str(choice).upper(), None)

# Hypothesis' profile "ci" is the same examples at every run and no deadline for one of them. A
# fifth of them is enough to notice what changed; `make fuzz` looks for new ones, ten times as many.
ALWAYS_THE_SAME = hypothesis.settings.get_profile("ci")
hypothesis.settings.register_profile("tests", ALWAYS_THE_SAME, max_examples=20)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=1000)

# What `make test-fast` leaves out: whose tests start processes, or compute for seconds, longest
# first. Elsewhere tests of Redis are found by themselves, and single ones say `@pytest.mark.slow`.
NOT_SLOW = "not slow"
TESTS = Path(__file__).parent
WITH_PROCESSES = (
    "e2e/browser",
    "cluster/test_scaling.py",
    "benchmarking/commands/test_commands.py",
    "e2e/test_wishes.py",
    "contracts/test_actuator.py",
    "benchmarking/rows/test_run.py",
    "e2e/test_cluster.py",
    "e2e/test_pipeline.py",
    "e2e/test_make_serve.py",
    "e2e/test_wheel.py",
    "e2e/test_bundle_edges.py",
    "cluster/test_engines.py",
    "benchmarking/test_real_server.py",
    "e2e/test_schemathesis.py",
    "benchmarking/commands/test_other_servers.py",
    "benchmarking/load/test_answers.py",
    "benchmarking/load/test_load.py",
    "cluster/test_deployments.py",
    "cluster/test_local.py",
    "cluster/test_ray_actors.py",
    "cluster/test_tended.py",
    "common/test_launcher.py",
    "deploy",
    "e2e",
    "inference_api/kernels/test_build.py",
    "inference_api/kernels/test_memory.py",
    "lab",
    "optimizer/test_e2e.py",
    "proxy",
    "test_forked.py",
    "test_layers.py",
    "weights/test_e2e.py",
)
WITH_MUCH_TO_COMPUTE = (
    "inference_api/engine/test_triton_ops.py",
    "inference_api/engine/test_graphs.py",
    "inference_api/engine/test_triton_steps.py",
    "benchmarking/report/test_page.py",
    "inference_api/speculation/test_speculated_answers.py",
    "benchmarking/analysis/test_predict.py",
    "inference_api/speculation/test_scheduler.py",
    "inference_api/speculation/test_sampled_law.py",
    "benchmarking/analysis/test_search.py",
    "inference_api/pipeline/test_same_answers.py",
    "inference_api/speculation/test_greedy_identity.py",
    "benchmarking/load/test_preflight.py",
    "contracts/test_draft_source.py",
    "inference_api/loading/test_gguf_damage.py",
    "inference_api/pipeline/test_ring.py",
    "inference_api/pipeline/test_routes.py",
    "inference_api/engine/test_sampler.py",
    "inference_api/kernels/test_models.py",
    "inference_api/speculation/test_ends_of_branches.py",
    "optimizer/test_simulation.py",
    "weights/test_samplers.py",
)
SLOW = (*WITH_PROCESSES, *WITH_MUCH_TO_COMPUTE)

# Tests start hundreds of processes: each would compile every module.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell that starts the tests in the background lets them, and whatever they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    _use_own_temporary_folder()
    _compile_routes_once()


def _compile_routes_once() -> None:
    """Hundreds of apps have the same routes, and what builds their addresses, which is the same for
    the same route, is most of what the start of an app takes."""
    compile_builder = Rule._compile_builder
    builders: dict[object, Callable[..., tuple[str, str]]] = {}

    def compiled(rule: Rule, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        key = rule.rule, *rule._trace, append_unknown
        if rule.defaults or key not in builders:
            builders[key] = compile_builder(rule, append_unknown)
        return builders[key]

    Rule._compile_builder = compiled  # type: ignore[assignment, method-assign]


def _use_own_temporary_folder() -> None:
    """Workers, servers and the libraries in them (Ray, torch, Chromium) inherit TMPDIR, so that
    one folder has all that they leave."""
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="hearth-")


@pytest.hookimpl(trylast=True)  # workers have ended by then
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Delete the temporary folder, unless a test failed whose files may say why."""
    if not hasattr(session.config, "workerinput") and exitstatus == pytest.ExitCode.OK:
        shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported here stays: looked through for garbage again and again it takes seconds."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    _let_torch_propagate()
    return result


def _let_torch_propagate() -> None:
    """Pytest adds its handlers to each logger that does not propagate, three times in each test,
    and fifty of torch's do not."""
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "torch":
            logger.propagate = True


@cache
def place(path: Path) -> int:
    """In the order of the files, or folders, that are listed; others come last."""
    inside = f"{path.relative_to(TESTS)}/" if path.is_relative_to(TESTS) else ""
    found = (n for n, each in enumerate(SLOW) if inside.startswith(f"{each}/"))
    return next(found, len(SLOW))


def waits(path: Path) -> bool:
    return place(path) < len(WITH_PROCESSES)


def is_slow(path: Path) -> bool:
    return place(path) < len(SLOW)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What would be left out need not be imported first."""
    return is_slow(collection_path) or None if config.option.markexpr == NOT_SLOW else None


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Slow files come first: at the end, workers share what takes seconds and none waits long."""
    for item in items:
        if waits(item.path):
            item.add_marker(pytest.mark.waits)
        given = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if is_slow(item.path) or "redis_url" in item.fixturenames or "redis" in given:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: place(unit_of(item)))


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis server of this test run, with an append-only file synced at every write."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.fail("redis-server is not installed: sudo apt-get install -y redis-server")
    port, folder = free_port(), tmp_path_factory.mktemp("redis")
    server = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder),
         "--appendonly", "yes", "--appendfsync", "always", "--save", ""],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert any("Ready to accept connections" in line for line in server.stdout)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def clean_redis_url(redis_url: str) -> str:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    return redis_url


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """Of a file in a folder that is not there yet."""
    return tmp_path / "state" / "store.db"
