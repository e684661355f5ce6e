"""The driver of llama.cpp over several machines, with RPC servers and `llama-bench`.

Devices are in the order of `--rpc`, then the local ones; each server has one device here.
"""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weights.drivers import Ring, last_line
from weights.drivers.gguf_layers import read_num_layers
from weights.errors import EngineUnusable, TrialFailed
from weights.partition import Layers, tensor_split

NO_CPU = "999"  # number of layers on devices; more than any model has


@dataclass(slots=True)
class LlamaCppDriver:
    """A `Driver` for llama.cpp. Somebody else starts the RPC servers, which keep running. `program`
    must be from the same build as they."""

    program: str
    model: Path
    rpc: tuple[str, ...]  # host:port
    local: tuple[str, ...] = ()  # devices of this machine, after the devices of `rpc`
    prompt_tokens: int = 0  # 0: measure generation alone
    generated_tokens: int = 128
    repeats: int = 3
    timeout_s: float = 1800.0
    options: tuple[str, ...] = ()
    ring: Ring = field(init=False)

    def __post_init__(self) -> None:
        num_layers = read_num_layers(self.model)
        nodes = (*self.rpc, *self.local)
        self.ring = Ring(nodes, num_layers, (num_layers,) * len(nodes))

    def measure(self, layers: Layers) -> float:
        tests = self._tests(layers)
        generated = [each for each in tests if each.get("n_gen")]
        if not generated:
            raise TrialFailed("llama-bench has measured no generation")
        tokens_per_s = generated[0].get("avg_ts")
        if not isinstance(tokens_per_s, int | float) or not tokens_per_s > 0:
            raise TrialFailed(f"llama-bench says {tokens_per_s!r} tokens/s")
        if not self.prompt_tokens:
            return float(tokens_per_s)
        return self._whole_request(tests, float(tokens_per_s))

    def finish(self, layers: Sequence[int]) -> str:
        devices = ",".join(self._devices)
        return (
            f"--rpc {','.join(self.rpc)} --device {devices} --n-gpu-layers {NO_CPU} "
            f"--split-mode layer --tensor-split {tensor_split(layers)}"
        )

    def _whole_request(self, tests: list[dict[str, Any]], generated_per_s: float) -> float:
        """Returns generated tokens/s of a request, including the time for its prompt."""
        prompts = [each.get("avg_ts") for each in tests if each.get("n_prompt")]
        if not prompts or not isinstance(prompts[0], int | float) or not prompts[0] > 0:
            raise TrialFailed("llama-bench has measured no prompt")
        prompt_s = self.prompt_tokens / float(prompts[0])
        seconds = prompt_s + self.generated_tokens / generated_per_s
        return self.generated_tokens / seconds

    @property
    def _devices(self) -> list[str]:
        return [*(f"RPC{number}" for number in range(len(self.rpc))), *self.local]

    def _command(self, layers: Layers) -> list[str]:
        return [
            *(self.program, "--model", str(self.model), "--rpc", ",".join(self.rpc)),
            *("--device", "/".join(self._devices), "--split-mode", "layer"),
            *("--n-gpu-layers", NO_CPU, "--tensor-split", tensor_split(layers).replace(",", "/")),
            *("--n-prompt", str(self.prompt_tokens), "--n-gen", str(self.generated_tokens)),
            *("--repetitions", str(self.repeats), "--output", "json", *self.options),
        ]

    def _tests(self, layers: Layers) -> list[dict[str, Any]]:
        """Runs `llama-bench`. Returns its tests. Raises TrialFailed and EngineUnusable."""
        try:
            finished = subprocess.run(
                self._command(layers),
                capture_output=True,
                text=True,
                timeout=self.timeout_s,
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            raise EngineUnusable(f"{self.program} does not start: {error}") from None
        except subprocess.TimeoutExpired:
            raise TrialFailed(f"no result within {self.timeout_s:g} s") from None
        last_words = last_line(finished.stderr)
        if finished.returncode:
            raise TrialFailed(f"llama-bench ended with {finished.returncode}: {last_words}")
        try:
            tests = json.loads(finished.stdout)
        except ValueError:
            raise TrialFailed(f"llama-bench printed no JSON: {last_words}") from None
        if not isinstance(tests, list) or not all(isinstance(each, dict) for each in tests):
            raise TrialFailed("llama-bench printed no list of tests")
        return tests
