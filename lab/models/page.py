"""Prints the table of docs/models.md, from what the readers make of a small config of each family.

    python -m lab.models.page            # or with --write: into the page

Here are the names that people know, and which families come with a layer that drafts. A test wants
a row for every family, and a tiny model of each that is compared with transformers.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from common.files import write_whole
from inference_api.loading.config import ModelConfig
from inference_api.loading.families.read import read_config
from inference_api.loading.families.recurrence import MixerKind
from inference_api.loading.gguf.names import ALSO_NAMED, ARCHITECTURES
from inference_api.loading.options import EngineOptions
from inference_api.loading.settling import device_faults
from lab.kit.results import PUBLISHED
from lab.kit.servers import ROOT

PAGE = ROOT / "docs/models.md"
BEGIN, END = "<!-- python -m lab.models.page --write -->\n", "<!-- end -->\n"

FAMILIES: Mapping[str, Sequence[str]] = {  # keys: what people call them, values: `model_type`
    "DeepSeek-V2": ("deepseek_v2",),
    "DeepSeek-V3, R1; Moonlight": ("deepseek_v3",),
    "ERNIE 4.5": ("ernie4_5", "ernie4_5_moe"),
    "EXAONE 4": ("exaone4",),
    "Falcon": ("falcon",),
    "Falcon-H1": ("falcon_h1",),
    "Gemma 3": ("gemma3", "gemma3_text"),
    "Gemma 3n": ("gemma3n", "gemma3n_text"),
    "Gemma 4": ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
    "GLM-4-0414": ("glm4",),
    "GLM-4.5, 4.5-Air": ("glm4_moe",),
    "GLM-4.7-Flash": ("glm4_moe_lite",),
    "gpt-oss": ("gpt_oss",),
    "Granite 3": ("granite",),
    "Granite 4": ("granitemoehybrid",),
    "Hunyuan": ("hunyuan_v1_dense", "hunyuan_v1_moe"),
    "Kimi Linear": ("kimi_linear",),
    "LFM2": ("lfm2", "lfm2_moe"),
    "Llama, SmolLM2 and others": ("llama",),
    "Mistral, Mistral Small 3, Ministral 3": ("mistral", "mistral3", "ministral3"),
    "Mistral 4": ("mistral4",),
    "Mixtral": ("mixtral",),
    "Nemotron-H, Nemotron 3 Nano and Super": ("nemotron_h",),
    "OLMo 2 and 3": ("olmo2", "olmo3"),
    "OLMo Hybrid": ("olmo_hybrid",),
    "Phi-3, 3.5, 4 and 4-mini": ("phi3",),
    "Qwen 2, 2.5 and 3": ("qwen2", "qwen3"),
    "Qwen3-MoE": ("qwen3_moe",),
    "Qwen3-Next": ("qwen3_next",),
    "Qwen3.5, Qwen3.6": ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    "Seed-OSS": ("seed_oss",),
    "SmolLM3": ("smollm3",),
}
MEASURED: Mapping[str, tuple[str, str]] = {  # a published result, and the model in its table
    "Granite 4": ("hybrids/2026-11-29-epyc-zen4-granite", "granite-4.0-h-micro Q8_0"),
    "LFM2": ("hybrids/2026-11-29-epyc-zen4-lfm2", "lfm2-1.2b Q8_0"),
    "Llama, SmolLM2 and others": ("peers/2026-11-29-epyc-zen4", "1.1b int8"),
    "Qwen3.5, Qwen3.6": ("hybrids/2026-11-29-epyc-zen4", "qwen3.5-0.8b Q8_0"),
}
ASSISTED = ("gemma4",)
DRAFTING = (
    *("deepseek_v3", "glm4_moe", "glm4_moe_lite", "nemotron_h"),
    *("qwen3_5", "qwen3_5_moe", "qwen3_next"),
)
RECURRENT: Mapping[MixerKind, str] = {
    "delta": "gated delta rule",
    "kimi_delta": "Kimi delta attention",
    "mamba2": "Mamba-2",
    "short_conv": "short convolution",
}
SAMPLE: Mapping[str, Any] = {  # what some reader has no default for
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_intermediate_size": 256,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 64,
    "kv_lora_rank": 64,
    "sliding_window": None,
    "full_attn_idxs": [3],
    "layers_block_type": ["mamba", "mamba", "mamba", "attention"],
    "mamba_n_heads": 16,
    "mamba_d_ssm": 512,
}
OWN: Mapping[str, Mapping[str, Any]] = {  # what families say in words of their own
    "gemma3n": {"num_kv_shared_layers": 2, "sliding_window": 64},
    "gemma3n_text": {"num_kv_shared_layers": 2, "sliding_window": 64},
    "gemma4": {"enable_moe_block": True, "top_k_experts": 2, "sliding_window": 64},
    "gemma4_text": {"sliding_window": 64},
    "gemma4_unified": {"sliding_window": 64},
    "gemma4_unified_text": {"sliding_window": 64},
    "kimi_linear": {"linear_attn_config": {"full_attn_layers": [4]}},
    "mistral3": {"text_config": {**SAMPLE, "model_type": "mistral"}},
    "nemotron_h": {"layers_block_type": None, "hybrid_override_pattern": "ME*-"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the table of docs/models.md.")
    parser.add_argument("--write", action="store_true", help="write it into the page")
    table = "".join(f"{line}\n" for line in lines())
    if not parser.parse_args().write:
        print(table, end="")
        return
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    write_whole(PAGE, f"{before}{BEGIN}{table}{END}{after}".encode())


def lines() -> Iterator[str]:
    """The rows of the table, and its head."""
    yield "| models | `model_type` | GGUF | on | has | drafts | times llama.cpp |"
    yield "|---|---|---|---|---|---|---|"
    for name, families in FAMILIES.items():
        configs = [sample(family) for family in families]
        of_gguf = [each[family] for family in families for each in _GGUF if family in each]
        cells = (
            name,
            _quoted(families),
            _quoted(of_gguf),
            "CPU" if any(map(_is_for_cpu, configs)) else "CPU, CUDA",
            ", ".join(dict.fromkeys(word for config in configs for word in _words(config))),
            _drafts(families),
            _speed(*MEASURED[name]) if name in MEASURED else "",
        )
        yield f"| {' | '.join(cells)} |"


def sample(family: str) -> ModelConfig:
    """Returns a small model, by its `model_type`."""
    text = {**SAMPLE, **OWN.get(family, {})}
    return read_config({"text_config": text, **text, "model_type": family})


_GGUF = (ARCHITECTURES, ALSO_NAMED)


def _is_for_cpu(config: ModelConfig) -> bool:
    return bool(device_faults(config, EngineOptions(device="cuda", max_rows=1)))


def _words(config: ModelConfig) -> Iterator[str]:
    if config.mixture is not None:
        yield "experts"
    if config.latent is not None:
        yield "latents"
    if config.num_streams > 1:
        yield "alternating updates"
    if config.recurrent is not None:
        yield RECURRENT[config.recurrent.kind]


def _drafts(families: Sequence[str]) -> str:
    if any(family in ASSISTED for family in families):
        return "assistant"
    return "MTP" if any(family in DRAFTING for family in families) else ""


def _speed(result: str, model: str) -> str:
    """How many times llama.cpp's tokens/s ours are, in the order of the result's loads."""
    table = json.loads((PUBLISHED / f"{result}.json").read_text())["tables"][-1]
    ratios = [
        row[-1].partition(" ")[0]
        for row in table["rows"]
        if row[0] == model and row[2].startswith("llama.cpp")
    ]
    return f"[{', '.join(ratios)}](../lab/results/{result}.md)"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


if __name__ == "__main__":
    main()
