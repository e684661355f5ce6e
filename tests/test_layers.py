"""What must not be imported is not: the serving threads need no torch, the proxy no numpy, and who
has no Redis none of its client."""

import subprocess
import sys

import pytest

ENGINE = {"torch", "transformers"}
NUMERICS = {"numpy.f2py", "scipy.linalg", "scipy.optimize", "scipy.special", "scipy.stats"}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("inference_api", ENGINE),
        ("inference_api.inference_api_server", ENGINE | NUMERICS | {"jwt", "redis", "requests"}),
        ("inference_api._mock_inference_api_server", ENGINE),
        ("inference_api.preflight", ENGINE),
        ("inference_api.loading.packing.folder", ENGINE),
        ("inference_api.loading.heads", ENGINE),
        ("proxy.proxy", {"kubernetes", "numpy", "flask", "redis", "requests"}),
        ("optimizer.app", {"redis"}),
        ("weights.app", {"redis"}),
        ("cluster.actuators.ray_actors", {"ray", "inference_api"}),
        ("common.errors", {"gunicorn", "pydantic", "redis", "sqlite3"}),
    ],
)
def test_import_leaves_out_what_it_does_not_need(module: str, unwanted: set[str]) -> None:
    code = f"import sys, {module}; print(*{unwanted} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], timeout=60, stdout=subprocess.PIPE)
    assert (said.returncode, said.stdout) == (0, b"\n")


def test_a_tokenizer_is_read_without_the_libraries_that_train() -> None:
    code = (
        "import sys; from inference_api.settings import EMBEDDED_MODEL;"
        "from inference_api.text.tokens import load_tokenizer;"
        "load_tokenizer(EMBEDDED_MODEL, frozenset()).encode_chat([dict(role='user', content='a')]);"
        f"print(*{ENGINE} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], timeout=60, stdout=subprocess.PIPE)
    assert (said.returncode, said.stdout) == (0, b"\n")
