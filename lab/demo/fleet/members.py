"""The servers of the fleet, one per engine, and their hours. Immutable: any thread."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference_api.settings import EMBEDDED_MODEL
from lab.models.gguf_file import make_gguf
from lab.peers.install import PREBUILT_LLAMA, VLLM, NotInstalled, install

OUT_TOKENS = 40
SPREAD = 1 / 6  # standard deviation of request times, as a share of the server's hours
TEMPORARY = "temporary"  # vLLM's sockets and files, which it leaves when it is killed
CONTEXT_TOKENS = 128  # context of a row
PLANNED_TTFT_MS, PLANNED_ITL_MS = 400.0, 60.0


@dataclass(frozen=True, slots=True)
class Member:
    """A server of the system and its model, of one name. `keys` is its part of the cluster's file.

    `share` is the share of a core that each replica gets once it is ready. It is so small that two
    replicas of each server, one of them starting, and the services fit on two cores. Requests come
    between `dawn` and `dusk`, as shares of the day."""

    name: str
    title: str
    keys: Mapping[str, Any]
    share: float
    dawn: float
    dusk: float
    rows: int = 8
    least_replicas: int = 0
    most_replicas: int = 2
    tokenizer: str = str(EMBEDDED_MODEL)
    perf: Mapping[str, Any] = field(default_factory=dict)
    peak_per_s: float = 0.0
    planned_itl_ms: float = PLANNED_ITL_MS

    def rate_at(self, at_s: float, day_s: float) -> float:
        """Returns the requests per second: a bell curve, highest at noon, cut at dawn and dusk."""
        part = (at_s / day_s - self.dawn) / (self.dusk - self.dawn)
        from_noon = (part - 0.5) / SPREAD
        return self.peak_per_s * math.exp(-(from_noon**2) / 2) if 0 < part < 1 else 0.0


def members(folder: Path, report: Any = print) -> Sequence[Member]:
    """Returns a server for each engine that is or can be installed, all with the embedded model."""
    found = [
        Member("chat", "Hearth", {"settings": {"MODEL_NAME": "chat"}}, 0.1, 0.0, 0.7),
    ]
    file = folder / "code.gguf"
    words = (
        f"{PREBUILT_LLAMA.python} -m {PREBUILT_LLAMA.check} {{model}} --port {{port}} --alias code"
    )
    llama = {
        "engine": "llama-server",
        "model": str(file),
        "command": f"{words} --users {{rows}} --context {CONTEXT_TOKENS} --metrics",
    }
    (folder / TEMPORARY).mkdir()
    # The build's own command does not start, because it asks for another package's version.
    words = f"{VLLM.python} -m vllm.entrypoints.openai.api_server --model {{model}}"
    vllm = {
        "engine": "vllm",
        "model": str(EMBEDDED_MODEL),
        "command": f"{words} --host {{host}} --port {{port}} --served-model-name mail "
        f"--max-num-seqs {{rows}} --max-model-len {CONTEXT_TOKENS} --enforce-eager",
        "settings": {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(folder / TEMPORARY),
        },
    }
    for recipe, member in (
        (PREBUILT_LLAMA, Member("code", "llama.cpp", llama, 0.1, 0.1, 0.9)),
        (VLLM, Member("mail", "vLLM", vllm, 0.7, 0.2, 1.0)),
    ):
        try:
            report(f"{member.title} {install(recipe)}")
        except NotInstalled as error:
            report(f"{member.title} is left out: {error}")
        else:
            found.append(member)
    make_gguf(EMBEDDED_MODEL, file, "Q8_0")
    return found
