"""A tiny random assistant for a tiny Gemma 4: transformers' `Gemma4AssistantForCausalLM`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import PropertyMock, patch

import torch
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4TextConfig,
    PreTrainedModel,
)

from tests.inference_api.engine.tiny_models import GEMMA4, VOCAB_SIZE

KINDS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]


@contextmanager
def all_layers_shared() -> Iterator[None]:
    """transformers 5.23 refuses configs whose layers all use another model's keys and values."""
    modes = PropertyMock(return_value=["reuse"] * len(KINDS))
    with patch.object(Gemma4TextConfig, "kv_sharing_modes", modes):
        yield


def make_assistant(main: PreTrainedModel, folder: Path, **changes: object) -> PreTrainedModel:
    """Build an assistant for `main`, save it to `folder`, and return it."""
    torch.manual_seed(1)
    own = {
        **GEMMA4,
        "hidden_size": 64,
        "layer_types": KINDS,
        "vocab_size": VOCAB_SIZE,
        "vocab_size_per_layer_input": 0,
        "num_kv_shared_layers": len(KINDS),
    }
    with all_layers_shared():
        config = Gemma4AssistantConfig(
            text_config=Gemma4TextConfig(**own | changes),
            backbone_hidden_size=main.config.hidden_size,
            tie_word_embeddings=changes.get("tie_word_embeddings", True),
        )
        model: PreTrainedModel = Gemma4AssistantForCausalLM(config)
        for name, parameter in (*model.named_parameters(), *model.named_buffers()):
            if parameter.ndim == 1 and not name.endswith("inv_freq"):  # norms, scalars of layers
                torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
        model.eval().save_pretrained(folder)
    return model
