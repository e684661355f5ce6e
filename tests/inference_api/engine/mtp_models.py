"""Tiny random models with a layer that guesses further tokens: transformers' `MtpModel`."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHModel

from tests.inference_api.engine.tiny_models import make_model

WEIGHTS = "model.safetensors"
MODELS: dict[str, dict[str, object]] = {  # changes of tiny models
    "qwen3.5": {},
    "qwen3.5-moe": {},
    "qwen3-next": {"decoder_sparse_step": 1},
    "glm4-moe": {},
    "glm4-moe-lite": {},
    "deepseek-v3": {},
    "nemotron": {},
    "nemotron-super": {},
}
QWEN_NAMES = {
    "mtp_block": "mtp.layers.0",
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "post_norm": "mtp.norm",
}
NEMOTRON_NAMES = {
    "layers": "mtp.layers",
    "norm_f": "mtp.layers.1.final_layernorm",
    **{each: f"mtp.layers.0.{each}" for each in ("eh_proj", "enorm", "hnorm")},
}


class NemotronMtp(torch.nn.Module):
    """What `MtpModel` cannot build: its layers have either attention or experts."""

    def __init__(self, main: PreTrainedModel) -> None:
        super().__init__()
        config = deepcopy(main.config)
        config.layers_block_type = list(config.mtp_layers_block_type)
        layer = NemotronHModel(config)
        self.embed_tokens, self.shared_head = main.get_input_embeddings(), main.lm_head
        layer.eh_proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        layer.enorm, layer.hnorm = deepcopy(layer.norm_f), deepcopy(layer.norm_f)
        self.layers: Any = torch.nn.ModuleList([layer])

    def forward_layer(
        self, index: int, hidden: torch.Tensor, *_: object, input_ids: torch.Tensor
    ) -> torch.Tensor:
        layer = self.layers[index]
        both = [layer.enorm(self.embed_tokens(input_ids)), layer.hnorm(hidden)]
        result = layer(inputs_embeds=layer.eh_proj(torch.cat(both, dim=-1)), use_cache=False)
        last: torch.Tensor = result.last_hidden_state
        return last


def make_mtp_model(
    name: str, folder: Path, **changes: object
) -> tuple[PreTrainedModel, MtpModel | NemotronMtp]:
    """Build model `name` and the layer behind it, save both to `folder`, and return them."""
    main = make_model(name, folder, **MODELS[name], **changes)
    config = main.config
    if name.startswith("nemotron"):
        mtp = NemotronMtp(main).eval()
    else:
        config.num_mtp_layers, config.mtp_layer_types = 1, ["full_attention"]
        config.mtp_mlp_layer_types = ["sparse"]
        mtp = MtpModel(main, 1).eval()
    for parameter_name, parameter in (*mtp.named_parameters(), *mtp.named_buffers()):
        if not parameter_name.startswith("layers.0."):  # the model's own
            continue
        is_vector = parameter.ndim == 1 or parameter_name.endswith("_bias")
        mean = parameter.mean().item() if is_vector else 0.0
        std = 0.2 if is_vector else config.initializer_range
        torch.nn.init.normal_(parameter, mean, std)
    layer = f"model.layers.{config.num_hidden_layers}"
    glm_names = {
        "mtp_block": layer,
        "post_norm": f"{layer}.shared_head.norm",
        **{each: f"{layer}.{each}" for each in ("eh_proj", "enorm", "hnorm")},
    }
    own = {"qwen": QWEN_NAMES, "nemo": NEMOTRON_NAMES}
    names = own.get(name[:4], glm_names)
    tensors = load_file(folder / WEIGHTS)
    for full_name, tensor in mtp.layers[0].state_dict().items():
        if full_name.startswith("embeddings."):  # the model's own
            continue
        module, _, rest = full_name.partition(".")
        name_there = f"{names[module]}.{rest}"
        if ".mixer.experts." in name_there:  # published one by one
            stem, _, kind = name_there.rpartition(".")
            singles = enumerate(tensor)
            tensors |= {f"{stem}.{at}.{kind}.weight": each.clone() for at, each in singles}
            continue
        tensors[name_there] = tensor
    save_file(tensors, folder / WEIGHTS)
    return main, mtp
