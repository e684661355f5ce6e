"""What must not be imported is not: the CPU needs no torch, the proxy no numpy, what draws nothing
no matplotlib, and who has no Redis none of its client."""

import subprocess
import sys

import pytest

ENGINE = {"torch", "transformers"}
NUMERICS = {"numpy.f2py", "scipy.linalg", "scipy.optimize", "scipy.special", "scipy.stats"}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("inference_api.inference_api_server", ENGINE | NUMERICS | {"jwt", "redis", "requests"}),
        (
            "inference_api._mock_inference_api_server, inference_api.preflight,"
            "inference_api.model_loading, inference_api.engine.devices,"
            "inference_api.loading.packing.folder, inference_api.loading.heads",
            ENGINE,
        ),
        ("scripts.serve", {"gguf", "numpy"}),
        ("proxy.proxy", {"kubernetes", "numpy", "flask", "redis", "requests"}),
        ("optimizer.app, weights.app", {"redis"}),
        ("benchmarking.commands.cli", {"matplotlib", "flask", "torch"}),
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


DECODE = """
import sys
sys.modules["torch"] = None  # its import fails
from pathlib import Path
from inference_api.engine.devices import check_memory, make_runner
from inference_api.loading.options import EngineOptions
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep, place_own_pages
from inference_api.settings.model import EMBEDDED_MODEL

options = EngineOptions(device="cpu", max_rows=2, max_seq_len=64, has_medusa=True)
runner = make_runner(Path(EMBEDDED_MODEL), options)
check_memory({"model": runner})
runner.load()
runner.warm_up()
place_own_pages(runner)
sampling = SamplingParams(seed=1, top_k=5, num_logprobs=3, logit_bias=((7, 1.0),))
step = RowStep(1, 0, (5, 6, 7), (Draw(sampling, (5, 6, 7), ()),), wants_hidden=True)
[result] = runner.step([step])
runner.medusa.guess([result.hidden[-1]])
runner.copy_page(1, 0)
print(len(result.drawn))
"""


@pytest.mark.slow
def test_cpu_decodes_without_torch() -> None:
    said = subprocess.run([sys.executable, "-c", DECODE], timeout=120, stdout=subprocess.PIPE)
    assert (said.returncode, said.stdout) == (0, b"1\n")
