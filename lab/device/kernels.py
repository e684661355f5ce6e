"""How far operations by Triton are from float64, and how long they take beside torch's.

Exits with 1 where one is too far. On the CPU, the interpreter's times say nothing.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice

import torch
from torch import Tensor

from inference_api.engine.cuda.graphs import capturing
from inference_api.engine.cuda.inputs import token_inputs
from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.engine.cuda.ops import (
    MAX_PRODUCT_TOKENS,
    Affine,
    LayerHeads,
    TokenOperations,
)
from inference_api.engine.cuda.panels import Panels
from inference_api.engine.cuda.parameters import summed
from inference_api.engine.cuda.rope import Rope
from inference_api.engine.cuda.torch_ops import TorchOps
from inference_api.engine.cuda.triton_ops import TritonOps
from inference_api.kernels.packing import BITS, GROUP, PANEL, SCALE_BYTES, Bits, packed_bytes
from inference_api.loading.config import LayerRange, ModelConfig, cache_capacity
from inference_api.loading.families.read import read_config
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep
from lab.benches.engine.cuda import MODEL_SHAPES
from lab.device.machine import seconds
from lab.models.random_model import config_of

ROWS, CONTEXTS = 32, (128, 1500)
RECORDED = 20  # launches in a recording
BOUNDS = {torch.bfloat16: 1e-2, torch.float32: 1e-4}  # of errors, of the largest number
SEED = 20261129
DRAW = Draw(SamplingParams(), (), ())

Work = Callable[[], Tensor]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=MODEL_SHAPES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    on_cuda, device = arguments.device == "cuda", torch.device(arguments.device)
    dtype = torch.bfloat16 if on_cuda else torch.float32
    config = read_config(config_of(MODEL_SHAPES[arguments.shape])).part(LayerRange(0, 1))
    errors = []
    with torch.inference_mode():
        ours, torchs, exact = (
            work(kind, config, device, precision)
            for kind, precision in (
                (TritonOps, dtype),
                (TorchOps, dtype),
                (TorchOps, torch.float64),
            )
        )
        for name, own in ours.items():
            expected = exact[name]()
            errors.append(float((own().double() - expected).abs().max() / expected.abs().max()))
            own_us, torchs_us = (time_us([each], on_cuda) for each in (own, torchs[name]))
            print(
                f"{name:27} off by {errors[-1]:.1e}; {own_us:8.1f} us, torch {torchs_us:8.1f} us",
                flush=True,
            )
    return 1 if max(errors) > BOUNDS[dtype] else 0


def work(
    kind: type[TritonOps] | type[TorchOps],
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, Work]:
    """What each operation does for one layer, by name; numbers are the same for all kinds."""
    rows, contexts = (ROWS, CONTEXTS) if device.type == "cuda" else (2, (40, 600))
    longest = max(contexts)
    cache = TorchCache(config, rows, longest, device, dtype)
    ops = kind(config, cache, Rope(config, longest, device, dtype))
    generator = torch.Generator().manual_seed(SEED)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).bfloat16().to(device, dtype)

    cache.entries.copy_(random(*cache.entries.shape))
    hidden, ffn = config.hidden_size, config.ffn_size
    x, more, weight, up = (
        random(rows, hidden),
        random(rows, hidden),
        random(hidden),
        random(rows, 2 * ffn),
    )
    qkv = random(rows, config.qkv_size(config.shape_of(0)))
    normed = config.num_heads + config.num_kv_heads
    heads = LayerHeads(
        0,
        random(normed, config.head_dim) if config.has_qk_norm else None,
        random(config.num_heads) if config.has_sinks else None,
    )
    queries = random(rows, config.num_heads, config.head_dim)
    weights = {bits: random_panels(2 * ffn, hidden, bits, device) for bits in BITS.values()}
    narrow = {bits: random_panels(2 * PANEL, hidden, bits, device) for bits in BITS.values()}
    many = random(MAX_PRODUCT_TOKENS + 1, hidden)
    norm = Affine(weight, weight if config.norm == "layer" else None)
    ids = torch.arange(rows, dtype=torch.int32, device=device)

    def tokens(count: int, context: int) -> TokenOperations:
        steps = [RowStep(row, context - 1, (0,), (DRAW,)) for row in range(count)]
        inputs = torch.from_numpy(token_inputs(steps, [0] * count)).to(device)
        return ops.tokens(inputs, [cache_capacity(longest)])

    return {
        f"norm_add, {rows} tokens": lambda: ops.norm_add(x, more, None, norm)[1],
        f"gate, {rows} tokens": lambda: ops.gate(up),
        **{
            f"multiply in {bits} bits, {count} tokens": partial(
                lambda weight, count: summed(ops.multiply(x[:count], [weight], None), dtype),
                *(weight, count),
            )
            for bits, weight in weights.items()
            for count in (1, rows)
        },
        **{
            f"multiply in {bits} bits, {len(many)} tokens": partial(
                ops.multiply, many, [weight], None
            )
            for bits, weight in narrow.items()
        },
        **{
            f"embed in {bits} bits, {rows} tokens": partial(ops.embed, ids, weight)
            for bits, weight in narrow.items()
        },
        f"place_heads, {rows} tokens": partial(
            lambda placing: placing.place_heads(qkv.clone(), heads), tokens(rows, longest)
        ),
        **{
            f"attend, {count} tokens at {context}": partial(
                lambda attending, count: attending.attend(queries[:count], heads),
                tokens(count, context),
                count,
            )
            for context in contexts
            for count in (1, rows)
        },
    }


def random_panels(outputs: int, inputs: int, bits: Bits, device: torch.device) -> Panels:
    """Random bytes, but for scales."""
    generator = torch.Generator(device).manual_seed(SEED)
    num_bytes = packed_bytes(bits, outputs, inputs)
    blocks = torch.randint(
        256, (num_bytes,), generator=generator, device=device, dtype=torch.uint8
    ).view(-1, packed_bytes(bits, PANEL, GROUP))
    scales = torch.rand(len(blocks), PANEL, generator=generator, device=device).half()
    blocks[:, -PANEL * SCALE_BYTES :] = scales.view(torch.uint8)
    return Panels(blocks.flatten(), bits, outputs, inputs)


def time_us(works: Sequence[Work], on_cuda: bool) -> float:
    """Time of one launch, in turn; on CUDA of a recorded one, as steps are."""

    def several(_: Tensor) -> Sequence[Tensor]:
        return [work() for work in islice(cycle(works), RECORDED)]

    if not on_cuda:
        return seconds(works[0], times=1) * 1e6  # which says nothing
    return seconds(capturing()(several, torch.empty(0, device="cuda"))) / RECORDED * 1e6


if __name__ == "__main__":
    sys.exit(main())
