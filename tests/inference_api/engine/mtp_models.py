"""Tiny random models with a layer that guesses further tokens: transformers' `MtpModel`."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel

from tests.inference_api.engine.tiny_models import make_model

WEIGHTS = "model.safetensors"
MODELS: dict[str, dict[str, object]] = {  # changes of tiny models
    "qwen3.5": {},
    "qwen3.5-moe": {},
    "qwen3-next": {"decoder_sparse_step": 1},
    "glm4-moe": {},
    "glm4-moe-lite": {},
    "deepseek-v3": {},
}
QWEN_NAMES = {
    "mtp_block": "mtp.layers.0",
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "post_norm": "mtp.norm",
}


def make_mtp_model(name: str, folder: Path, **changes: object) -> tuple[PreTrainedModel, MtpModel]:
    """Build model `name` and the layer behind it, save both to `folder`, and return them."""
    main = make_model(name, folder, **MODELS[name], **changes)
    config = main.config
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
    names = QWEN_NAMES if name.startswith("qwen") else glm_names
    tensors = load_file(folder / WEIGHTS)
    for full_name, tensor in mtp.layers[0].state_dict().items():
        module, _, rest = full_name.partition(".")
        tensors[f"{names[module]}.{rest}"] = tensor
    save_file(tensors, folder / WEIGHTS)
    return main, mtp
