"""A decoder-only transformer over a static KV cache. Decode thread only.

One path for every family: what differs is data in `ModelConfig`. A row's numbers depend on that
row alone, bit for bit: no operation here mixes rows, and the matrix products, whose summation
order depends on how many rows they see, see a fixed or rounded number of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.engine.attention import Attention, Attentions
from inference_api.engine.linear import Linear
from inference_api.engine.loading.config import ModelConfig
from inference_api.engine.loading.weights import Parameters
from inference_api.engine.rope import Rope, turn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class Affine(NamedTuple):
    """The weight and the bias of a norm."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Layer:
    """The parameters of one layer."""

    attention_norm: Affine
    qkv: Linear  # [heads * head_dim of queries, then of keys, then of values, hidden]
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    out: Linear
    mlp_norm: Affine | None
    up: Linear  # [gate, then up, hidden] when the MLP is gated
    down: Linear


class Decoder:
    """Runs prompts and steps. Tokens, rows and positions are trusted to be in range."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        attentions: Attentions,
        rope: Rope,
        rows_multiple: int,
    ) -> None:
        """`rows_multiple`: a step computes this many rows or a multiple, the rest are padding."""
        self._config = config
        self._attentions = attentions
        self._rope = rope
        self._rows_multiple = rows_multiple
        self._activation = ACTIVATIONS[config.activation]
        self._embedding = parameters.tensors["embedding"]
        self._layers = [_layer(config, parameters, i) for i in range(config.num_layers)]
        self._final_norm = _affine(parameters, "final_norm")
        self._head = parameters.linear("head")
        self._device = self._embedding.device

    def prefill(self, row: int, start: int, token_ids: Sequence[int]) -> None:
        """Write the keys and values of one row's next tokens. No logits: see `ModelRunner`."""
        tokens = torch.tensor(token_ids, device=self._device)
        positions = torch.arange(start, start + len(token_ids), device=self._device)
        self._hidden(tokens, positions, self._attentions.chunk(row, start, len(token_ids)))

    def decode(
        self, token_ids: Sequence[int], rows: Sequence[int], positions: Sequence[int]
    ) -> Tensor:
        """Write one token of each row; logits [len(rows), vocab] float32 for what follows it."""
        num_padding = -len(rows) % self._rows_multiple
        padding = [0] * num_padding
        tokens, places = torch.tensor(
            [[*token_ids, *padding], [*positions, *padding]], device=self._device
        )
        attention = self._attentions.step(rows, positions, num_padding)
        return self.forward(tokens, places, attention)[: len(rows)]

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        """Logits [n, vocab] float32 for what follows `tokens` [n] at `positions` [n]."""
        hidden = self._hidden(tokens, positions, attend)
        logits = self._head(self._norm(hidden, self._final_norm)).float()
        divisor = self._config.logits_divisor
        return logits if divisor == 1.0 else logits / divisor

    def _hidden(self, tokens: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        """All layers over `tokens` [n] at `positions` [n]: [n, hidden]."""
        config = self._config
        scale = config.residual_multiplier
        turns = self._rope.at(positions)
        x = F.embedding(tokens, self._embedding) * config.embedding_multiplier
        for index, layer in enumerate(self._layers):
            normed = self._norm(x, layer.attention_norm)
            attention = attend(index, *self._project(normed, layer, turns))
            attention = layer.out(attention)
            if config.is_parallel:
                if layer.mlp_norm is not None:
                    normed = self._norm(x, layer.mlp_norm)
                x = torch.add(x, attention + self._mlp(normed, layer), alpha=scale)
            else:
                assert layer.mlp_norm is not None
                x = torch.add(x, attention, alpha=scale)
                normed = self._norm(x, layer.mlp_norm)
                x = torch.add(x, self._mlp(normed, layer), alpha=scale)
        return x

    def _project(
        self, x: Tensor, layer: Layer, turns: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [n, heads, head_dim], keys and values [n, kv_heads, head_dim], rope applied."""
        config = self._config
        qkv = layer.qkv(x).view(-1, config.num_qkv_heads, config.head_dim)
        qk, values = qkv.split_with_sizes(
            [config.num_heads + config.num_kv_heads, config.num_kv_heads], 1
        )
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (config.head_dim,), eps=config.norm_eps) * layer.qk_norm
        queries, keys = turn(qk, turns).split_with_sizes([config.num_heads, config.num_kv_heads], 1)
        return queries, keys, values

    def _mlp(self, x: Tensor, layer: Layer) -> Tensor:
        up = layer.up(x)
        if self._config.is_mlp_gated:
            gate, up = up.chunk(2, dim=-1)
            up = self._activation(gate) * up
        else:
            up = self._activation(up)
        return layer.down(up)

    def _norm(self, x: Tensor, norm: Affine) -> Tensor:
        shape, eps = (self._config.hidden_size,), self._config.norm_eps
        if self._config.norm == "rms":
            return F.rms_norm(x, shape, norm.weight, eps)
        return F.layer_norm(x, shape, norm.weight, norm.bias, eps)


def _affine(parameters: Parameters, name: str) -> Affine:
    tensors = parameters.tensors
    return Affine(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))


def _layer(config: ModelConfig, parameters: Parameters, index: int) -> Layer:
    def affine(name: str) -> Affine:
        return _affine(parameters, f"layers.{index}.{name}")

    def linear(name: str) -> Linear:
        return parameters.linear(f"layers.{index}.{name}.weight", f"layers.{index}.{name}.bias")

    qk_norm = None
    if config.has_qk_norm:
        norms = (parameters.tensors[f"layers.{index}.{name}"] for name in ("q_norm", "k_norm"))
        counts = (config.num_heads, config.num_kv_heads)
        qk_norm = torch.cat([n.expand(count, -1) for n, count in zip(norms, counts, strict=True)])
    return Layer(
        attention_norm=affine("attention_norm"),
        qkv=linear("qkv"),
        qk_norm=qk_norm,
        out=linear("out"),
        mlp_norm=affine("mlp_norm") if config.has_mlp_norm else None,
        up=linear("up"),
        down=linear("down"),
    )
