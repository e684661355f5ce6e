"""What must not be imported is not: the serving threads need no torch, the proxy no numpy."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("inference_api", "torch"),
        ("inference_api.inference_api_server", "torch"),
        ("inference_api.inference_api_server", "transformers"),
        ("inference_api._mock_inference_api_server", "torch"),
        ("inference_api.preflight", "torch"),
    ],
)
def test_import_does_not_load(module: str, absent: str) -> None:
    code = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
