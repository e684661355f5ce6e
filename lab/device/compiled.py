"""Compiles the kernels in Triton for a card that need not be here.

Prints the most shared memory that each takes. Exits with 1 where cards of 8.6 have less, or where a
model has several forms of one of the same sizes: a token's bits could then depend on how many there
are.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

from inference_api.engine.cuda.triton_ops import TritonOps
from inference_api.loading.config import LayerRange, ModelConfig
from inference_api.loading.families.read import read_config
from lab.benches.engine.cuda import MODEL_SHAPES
from lab.device.kernels import work
from lab.device.products import FORMS, by_triton, numbers
from lab.models.random_model import config_of

SHARED_BYTES = 99 * 1024  # that a program may have on cards of compute capability 8.6 and 8.9


@dataclass(frozen=True, slots=True)
class Card:
    """As much of a driver as compiling asks for."""

    capability: int

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capability", type=int, help="times ten: 80, 90 …")
    driver.set_active(Card(parser.parse_args().capability))
    shared: defaultdict[str, int] = defaultdict(int)
    forms: defaultdict[tuple[object, ...], set[str]] = defaultdict(set)
    run, model = JITFunction.run, 0

    def compiled(kernel: Any, *args: Any, **options: Any) -> None:
        made = run(kernel, *args, **options | {"warmup": True})
        name = kernel.__name__
        shared[name] = max(shared[name], made.metadata.shared)
        sizes = [
            each
            for param, each in zip(kernel.params, args, strict=False)
            if param.is_constexpr or each is None
        ]
        forms[name, model, *sizes].add(made.hash)

    with patch.object(JITFunction, "run", compiled), torch.inference_mode():
        for config, dtype in product(configs(), (torch.bfloat16, torch.float32)):
            model += 1
            for each in work(TritonOps, config, torch.device("cpu"), dtype).values():
                each()
        for form in FORMS:
            model += 1
            x, (weight,) = numbers(4096, 6144, "cpu")
            by_triton(x.bfloat16(), weight.bfloat16(), form)
    for name, most in shared.items():
        print(f"{name}: at most {most} bytes of shared memory")
    several = any(len(each) > 1 for each in forms.values())
    return 1 if several or max(shared.values()) > SHARED_BYTES else 0


def configs() -> Iterator[ModelConfig]:
    """Of one layer, which together take every path of a kernel."""
    llama = read_config(config_of(MODEL_SHAPES["8b"])).part(LayerRange(0, 1))
    paths: tuple[tuple[int, dict[str, Any]], ...] = (
        (128, {}),
        (64, {"has_sinks": True, "windows": (128,)}),
        (80, {"is_qk_norm_whole": True, "norm": "layer"}),
        (192, {"ropes": (None,), "activation": "gelu", "num_kv_heads": 2}),
        (256, {"is_qk_norm_last": True, "activation": "gelu_tanh"}),
    )
    for head_dim, changed in paths:
        own = replace(llama, head_dim=head_dim, rotary_dim=head_dim, has_qk_norm=head_dim != 128)
        yield replace(own, **changed)


if __name__ == "__main__":
    sys.exit(main())
