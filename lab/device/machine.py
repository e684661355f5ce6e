"""The card, its libraries, and what its memory and products do at most."""

import inspect
import time
from collections.abc import Callable

import torch

SIDE = 8192
COPIED_BYTES = 2**30
TIMES = 10


def main() -> None:
    has_card = torch.cuda.is_available()
    device, side = ("cuda", SIDE) if has_card else ("cpu", SIDE // 32)
    name = torch.cuda.get_device_name() if has_card else "no card"
    print(f"{name}; torch {torch.__version__}, CUDA {torch.version.cuda}")
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        print("torch has no varlen_attn")
    else:
        print(f"varlen_attn{inspect.signature(varlen_attn)}")
    num_bytes = COPIED_BYTES if has_card else COPIED_BYTES // 64
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = seconds(lambda: target.copy_(source))
    print(f"copies read and write {2 * num_bytes / copy_s / 1e9:.0f} GB/s")
    square = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    product_s = seconds(lambda: square @ square)
    print(f"a product of {side} x {side} in bfloat16: {2 * side**3 / product_s / 1e12:.2f} TFLOP/s")


def seconds(work: Callable[[], object], times: int = TIMES) -> float:
    """Of one time; the first is not counted."""
    work()
    _wait()
    began_s = time.perf_counter()
    for _ in range(times):
        work()
    _wait()
    return (time.perf_counter() - began_s) / times


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
