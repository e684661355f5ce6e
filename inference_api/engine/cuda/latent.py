"""Latent attention as maps to ordinary queries, keys and values, and back: see `LatentConfig`.

Keys and values are cached for every head, so that the rest of the decoder ignores latents.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.engine.cuda.parameters import Linear, TorchParameters, summed
from inference_api.loading.config import LATENT_NORM_EPS, LatentConfig, ModelConfig


@dataclass(frozen=True, slots=True)
class Latent:
    """Maps [n, inputs] to normalised latents [n, rank], and dimensions to be turned beside them."""

    linear: Linear
    norm: Tensor  # [rank]

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the dimensions to be turned [n, outputs - rank], and the latents."""
        projected = summed(self.linear(x), x.dtype)
        rank = len(self.norm)
        turned, latent = projected.split([projected.shape[-1] - rank, rank], -1)
        return turned, F.rms_norm(latent, self.norm.shape, self.norm, LATENT_NORM_EPS)


def latent_qkv(
    config: ModelConfig, latent: LatentConfig, parameters: TorchParameters, layer: int
) -> Linear:
    """Returns the map from a layer's input to all heads of queries, then keys, then values."""

    def linear(each: str) -> Linear:
        return parameters.linear(f"layers.{layer}.{each}")

    def latent_of(each: str) -> Latent:
        return Latent(linear(each), parameters.tensors[f"layers.{layer}.{each}_norm.weight"])

    to_query_latent = None if latent.query_rank is None else latent_of("q_a")
    to_queries, to_latent = linear("q_b"), latent_of("kv_a")
    to_heads = linear("kv_b")  # for each head, the unturned part of its key, then its value

    def qkv(x: Tensor) -> Tensor:
        _, query_latent = (None, x) if to_query_latent is None else to_query_latent(x)
        turned, kv_latent = to_latent(x)
        heads = summed(to_heads(kv_latent), x.dtype).view(len(x), config.num_heads, -1)
        unturned, values = heads.split([config.head_dim - config.rotary_dim, config.value_dim], -1)
        keys = torch.cat((turned.unsqueeze(1).expand(-1, config.num_heads, -1), unturned), -1)
        values = F.pad(values, (0, config.head_dim - config.value_dim))
        queries = summed(to_queries(query_latent), x.dtype)
        return torch.cat((queries, keys.flatten(1), values.flatten(1)), -1)

    return qkv


def latent_out(config: ModelConfig, linear: Linear) -> Linear:
    """Returns the map of attention's results; it drops the zeros that fill up each head."""
    return lambda x: linear(
        x.view(len(x), config.num_heads, -1)[..., : config.value_dim].flatten(1)
    )
