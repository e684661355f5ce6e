"""Latent attention's way to queries, keys and values, and back: see `LatentConfig`.

Keys and values are cached as they are made, for every head, so that all else is as without latents.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.engine.cuda.parameters import Linear, TorchParameters, whole
from inference_api.loading.config import LATENT_NORM_EPS, LatentConfig, ModelConfig


@dataclass(frozen=True, slots=True)
class Latent:
    """From [n, inputs] to latents [n, rank], which are normalised but for what is turned."""

    linear: Linear
    norm: Tensor  # [rank]

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What is turned [n, the other outputs], and the latents."""
        made = whole(self.linear(x), x.dtype)
        rank = len(self.norm)
        turned, latent = made.split([made.shape[-1] - rank, rank], -1)
        return turned, F.rms_norm(latent, self.norm.shape, self.norm, LATENT_NORM_EPS)


def latent_qkv(
    config: ModelConfig, latent: LatentConfig, parameters: TorchParameters, layer: int
) -> Linear:
    """Returns the map to all heads of the queries, of the keys and of the values."""

    def linear(each: str) -> Linear:
        return parameters.linear(f"layers.{layer}.{each}")

    def latent_of(each: str) -> Latent:
        return Latent(linear(each), parameters.tensors[f"layers.{layer}.{each}_norm.weight"])

    to_query_latent = None if latent.query_rank is None else latent_of("q_a")
    to_queries, to_latent = linear("q_b"), latent_of("kv_a")
    to_heads = linear("kv_b")  # for each the unturned part of its key, then its value

    def qkv(x: Tensor) -> Tensor:
        _, query_latent = (None, x) if to_query_latent is None else to_query_latent(x)
        turned, kv_latent = to_latent(x)
        heads = whole(to_heads(kv_latent), x.dtype).view(len(x), config.num_heads, -1)
        unturned, values = heads.split([config.head_dim - config.rotary_dim, config.value_dim], -1)
        keys = torch.cat((turned.unsqueeze(1).expand(-1, config.num_heads, -1), unturned), -1)
        values = F.pad(values, (0, config.head_dim - config.value_dim))
        queries = whole(to_queries(query_latent), x.dtype)
        return torch.cat((queries, keys.flatten(1), values.flatten(1)), -1)

    return qkv


def latent_out(config: ModelConfig, linear: Linear) -> Linear:
    """Returns the map of what attention gives, without the zeros that fill its heads."""
    return lambda x: linear(
        x.view(len(x), config.num_heads, -1)[..., : config.value_dim].flatten(1)
    )
