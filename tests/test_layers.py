"""What must not be imported is not: the CPU needs no torch, the proxy no numpy, what draws nothing
no matplotlib, and who has no Redis none of its client."""

import subprocess
import sys

import pytest

from lab.kit.servers import TIMEOUT_S

ENGINE = {"torch", "transformers"}
NUMERICS = {"numpy.f2py", "scipy.linalg", "scipy.optimize", "scipy.special", "scipy.stats"}


# One after the other in one process, so that those come first that need least.
SERVER = {
    "inference_api.inference_api_server": ENGINE | NUMERICS | {"jwt", "redis", "requests"},
    "inference_api._mock_inference_api_server": ENGINE,
    "inference_api.preflight": ENGINE,
    "inference_api.model_loading": ENGINE,
    "inference_api.engine.devices": ENGINE,
    "inference_api.loading.packing.folder": ENGINE,
    "inference_api.loading.heads": ENGINE,
    "inference_api.bundle.router": ENGINE | {"sklearn"},
    "optimizer.app": {"redis"},
    "weights.app": {"redis"},
}
OF_NO_PROXY = {"inference_api", "optimizer", "weights", "benchmarking"}
OTHERS = {
    "common.errors": {"gunicorn", "pydantic", "redis", "sqlite3"},
    "proxy.proxy": OF_NO_PROXY | {"kubernetes", "numpy", "torch", "flask", "redis", "requests"},
    "proxy.worker": OF_NO_PROXY | {"numpy", "torch", "flask"},
    "cluster.actuators.ray_actors": {"ray", "inference_api"},
    "scripts.serve": {"gguf", "numpy"},
    "benchmarking.commands.cli": {"matplotlib", "flask", "torch"},
}


@pytest.mark.parametrize("unwanted", [SERVER, OTHERS], ids=["server", "others"])
def test_import_leaves_out_what_it_does_not_need(unwanted: dict[str, set[str]]) -> None:
    code = "".join(
        f"import sys, {module}\nprint('{module}:', *{names} & set(sys.modules))\n"
        for module, names in unwanted.items()
    )
    said = subprocess.run([sys.executable, "-c", code], timeout=TIMEOUT_S, stdout=subprocess.PIPE)
    assert said.stdout.decode() == "".join(f"{module}:\n" for module in unwanted)


DECODE = """
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "huggingface_hub")))  # imports fail
from pathlib import Path
from inference_api.bundle.check import check_bundle
from inference_api.engine.devices import check_memory, make_runner
from inference_api.loading.checkpoint import RequestedModel, check_all
from inference_api.loading.options import EngineOptions
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep, place_own_pages
from inference_api.settings import Settings
from inference_api.settings.bundle_file import Bundle
from inference_api.settings.model import EMBEDDED_MODEL
from inference_api.text.tokens import load_tokenizer

experts = [dict(name="a", source=str(EMBEDDED_MODEL), speculation="auto")]
keys = dict(version=1, memory_limit=2**30, fast_memory_limit=2**30, experts=experts)
assert check_bundle(Bundle.model_validate(keys), Settings()).valid
options = EngineOptions(device="cpu", max_rows=1)
assert check_all([RequestedModel("m", str(EMBEDDED_MODEL), options)]) == []
load_tokenizer(EMBEDDED_MODEL, frozenset()).encode_chat([dict(role="user", content="a")])
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
def test_cpu_checks_encodes_and_decodes_without_torch() -> None:
    said = subprocess.run([sys.executable, "-c", DECODE], timeout=TIMEOUT_S, stdout=subprocess.PIPE)
    assert (said.returncode, said.stdout) == (0, b"1\n")
