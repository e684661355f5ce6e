"""What must not be imported is not: the serving threads need no torch, the proxy no numpy."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "inference_api",
        "inference_api.inference_api_server",
        "inference_api._mock_inference_api_server",
        "inference_api.preflight",
    ],
)
def test_import_loads_neither_torch_nor_transformers(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
