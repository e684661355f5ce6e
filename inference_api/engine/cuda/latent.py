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


@dataclass(frozen=True, slots=True)
class LatentQkv:
    """A `Linear` whose outputs are all heads of the queries, of the keys and of the values."""

    config: ModelConfig
    query_latent: Latent | None
    queries: Linear
    kv_latent: Latent
    keys_and_values: Linear  # for each head the unturned part of its key, then its value

    def __call__(self, x: Tensor) -> Tensor:
        config = self.config
        _, query_latent = (None, x) if self.query_latent is None else self.query_latent(x)
        turned, latent = self.kv_latent(x)
        heads = whole(self.keys_and_values(latent), x.dtype).view(len(x), config.num_heads, -1)
        unturned, values = heads.split([config.head_dim - config.rotary_dim, config.value_dim], -1)
        keys = torch.cat((turned.unsqueeze(1).expand(-1, config.num_heads, -1), unturned), -1)
        values = F.pad(values, (0, config.head_dim - config.value_dim))
        queries = whole(self.queries(query_latent), x.dtype)
        return torch.cat((queries, keys.flatten(1), values.flatten(1)), -1)


@dataclass(frozen=True, slots=True)
class LatentOut:
    """A `Linear` of what attention gives, without the zeros that fill its heads."""

    config: ModelConfig
    linear: Linear

    def __call__(self, x: Tensor) -> Tensor:
        heads = x.view(len(x), self.config.num_heads, -1)
        return self.linear(heads[..., : self.config.value_dim].flatten(1))


def latent_qkv(
    config: ModelConfig, latent: LatentConfig, parameters: TorchParameters, layer: int
) -> LatentQkv:
    def linear(each: str) -> Linear:
        return parameters.linear(f"layers.{layer}.{each}")

    def latent_of(each: str) -> Latent:
        return Latent(linear(each), parameters.tensors[f"layers.{layer}.{each}_norm.weight"])

    return LatentQkv(
        config,
        None if latent.query_rank is None else latent_of("q_a"),
        linear("q_b"),
        latent_of("kv_a"),
        linear("kv_b"),
    )
