"""Mixtures whose experts the CPU computes, beside layers by torch: here both are of one CPU."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from inference_api.engine.cuda.runner import CudaRunner
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.errors import StartupError
from inference_api.loading import hardware
from inference_api.loading.config import LayerRange
from inference_api.loading.options import EngineOptions
from inference_api.loading.settling import expert_layers
from inference_api.runner import RowStep
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.steps import ANY_DRAW
from tests.inference_api.engine.tiny_models import CONTEXT

OPTIONS = EngineOptions(device="cpu", dtype="float32", max_rows=3, max_seq_len=CONTEXT)
PROMPT = [*range(20, 100)]
# What others' layers do not compute: biases, clamps and sinks; shared experts and a dense layer.
NAMES = ("qwen3-moe", "gpt-oss", "deepseek-v3")
FORMS: dict[str, tuple[dict[str, Any], float]] = {  # with the least likeness of logits
    "float32": ({}, 1 - 1e-6),
    "bfloat16": ({"dtype": "bfloat16"}, 0.999),
    "int4": ({"dtype": "bfloat16", "quantization": "int4"}, 0.99),
}


def loaded(tiny: Tiny, name: str, experts: int | None, form: str = "float32") -> CudaRunner:
    options = replace(OPTIONS, experts_on_cpu=experts, **FORMS[form][0])
    runner = CudaRunner(tiny(name), options)
    runner.load()
    return runner


@torch.inference_mode()
def logits_of(runner: CudaRunner, *rows: RowStep) -> Tensor:
    return runner.decoder.forward(rows).logits.clone()


def scored(row: int, start: int = 0, count: int = 5) -> RowStep:
    return RowStep(row, start, PROMPT[start : start + count], (ANY_DRAW,) * count)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_the_same_wherever_experts_are(name: str, form: str, tiny_model: Tiny) -> None:
    """Behind a prompt of 64 tokens and a few more."""
    found = []
    most = len(expert_layers(loaded(tiny_model, name, 0)._full_config))
    for experts in (0, 1, most):
        runner = loaded(tiny_model, name, experts, form)
        with torch.inference_mode():
            runner.decoder.forward([RowStep(1, 0, PROMPT[:64])])
            runner.decoder.forward([RowStep(1, 64, PROMPT[64:70])])
        found.append(logits_of(runner, scored(1, 70)))
    for each in found[1:]:
        likeness = torch.cosine_similarity(each, found[0], dim=-1)
        assert likeness.min() >= FORMS[form][1]
        assert not torch.equal(each, found[0]), "other kernels add in another order"


@pytest.mark.parametrize("form", ["bfloat16", "int4"])
def test_a_token_has_its_own_bits_in_company(form: str, tiny_model: Tiny) -> None:
    runner = loaded(tiny_model, "qwen3-moe", 2, form)
    rows = scored(0, count=1), scored(2, count=5), scored(1, count=2)
    together = logits_of(runner, *rows).split([1, 5, 2])
    for row, expected in zip(rows, together, strict=True):
        assert torch.equal(logits_of(runner, row), expected)


def test_a_prompt_has_the_states_of_its_parts(tiny_model: Tiny) -> None:
    runner = loaded(tiny_model, "deepseek-v3", 1)

    @torch.inference_mode()
    def states(row: int, start: int, end: int) -> Tensor:
        step = RowStep(row, start, PROMPT[start:end], wants_hidden=True)
        (found,) = runner.decoder.forward([step]).hidden
        assert found is not None
        return found

    parts = torch.cat([states(0, 0, 64), states(0, 64, 66), states(0, 66, 70)])
    torch.testing.assert_close(states(1, 0, 70), parts, atol=3e-5, rtol=1e-5)


def test_memory_is_counted_where_it_is(tiny_model: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many layers' experts are left to the CPU as do not fit, if their number is not given."""
    all_bytes, one_less, none = (
        loaded(tiny_model, "qwen3-moe", experts).footprint.total_bytes for experts in range(3)
    )
    assert all_bytes - one_less == one_less - none > 0
    for free_bytes, expected in ((all_bytes, 0), (all_bytes - 1, 1), (one_less - 1, 2), (none, 2)):
        monkeypatch.setattr(CudaRunner, "free_bytes", lambda _, free=free_bytes: free)
        runner = loaded(tiny_model, "qwen3-moe", None)
        assert len(runner._config.experts_elsewhere) == expected
    monkeypatch.setattr(CudaRunner, "free_bytes", lambda _: all_bytes)
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: all_bytes - one_less - 1)
    with pytest.raises(StartupError, match="KV cache of 0 tokens"):
        loaded(tiny_model, "qwen3-moe", 1)


@pytest.mark.parametrize(
    ("name", "changed", "fault"),
    [
        ("llama", {}, "EXPERTS_ON_CPU=1: 0 layers of the model have experts; lower it"),
        ("qwen3-moe", {"experts_on_cpu": 3}, "EXPERTS_ON_CPU=3: 2 layers of the model have exper"),
        ("qwen3-moe", {"layers": LayerRange(0, 1)}, "a split model keeps its experts"),
    ],
)
def test_refusals_name_the_setting(
    name: str, changed: dict[str, Any], fault: str, tiny_model: Tiny
) -> None:
    options = replace(OPTIONS, **{"experts_on_cpu": 1, **changed})
    with pytest.raises(StartupError, match=fault):
        CudaRunner(tiny_model(name), options)


def test_the_cpu_alone_has_no_experts_elsewhere(tiny_model: Tiny) -> None:
    with pytest.raises(StartupError, match="EXPERTS_ON_CPU=1 is for a GPU"):
        KernelRunner(tiny_model("qwen3-moe"), replace(OPTIONS, experts_on_cpu=1))
    KernelRunner(tiny_model("qwen3-moe"), replace(OPTIONS, experts_on_cpu=None))
