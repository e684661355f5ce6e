"""A decoder-only transformer over a static KV cache. Decode thread only.

One path for every family: what differs is data in `ModelConfig`. A row's numbers depend on that
row alone, bit for bit: no operation here mixes rows, and the matrix products, whose summation
order depends on how many rows they see, see a fixed or rounded number of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.engine.cuda.attention import Attention, ChunkAttention, StepAttention, TokenPlace
from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.engine.cuda.latent import LatentOut, latent_qkv
from inference_api.engine.cuda.mlp import Mlp, make_mlp
from inference_api.engine.cuda.parameters import Linear, TorchParameters
from inference_api.engine.cuda.rope import Rope, TensorTurns, turn
from inference_api.loading.config import ModelConfig
from inference_api.runner import RowStep


class TorchOutputs(NamedTuple):
    """The outputs of a step: see `step_decoder.Outputs`."""

    logits: Tensor  # float32
    hidden: Sequence[Tensor | None]


class Affine(NamedTuple):
    """The weight and the bias of a norm."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Layer:
    """The parameters of one layer."""

    attention_norm: Affine | None
    qkv: Linear  # [heads * head_dim of queries, then of keys, then of values, hidden]
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    sinks: Tensor | None  # [heads]
    out: Linear
    attention_output_norm: Affine | None
    mlp_norm: Affine | None
    mlp: Mlp
    mlp_output_norm: Affine | None


class Decoder:
    """Decodes by torch, step by step.

    With steps of one size, a token that draws has the same bits whatever shares its step and
    whether it was drafted; those of a prompt have when it is always cut alike.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: TorchParameters,
        cache: TorchCache,
        rope: Rope,
        rows_multiple: int,
    ) -> None:
        """`rows_multiple`: a step computes this many rows or a multiple, the rest are padding."""
        self._config = config
        self._cache = cache
        self._max_rows = cache.keys.shape[1]
        self._rope = rope
        self._rows_multiple = rows_multiple
        self._embedding = parameters.tensors["embedding"]
        # In the precision of the sums, as Gemma was trained with it.
        self._embedding_multiplier = self._embedding.new_tensor(config.embedding_multiplier)
        self._layers = [
            _layer(config, parameters, i, rows_multiple) for i in range(config.num_layers)
        ]
        self._final_norm = _affine(parameters, "final_norm")
        self._head = parameters.linear("head")
        self._device = self._embedding.device
        self._no_states = self._embedding.new_empty(0, config.hidden_size)

    def warm_up(self) -> None:
        """Nothing is prepared."""

    def forward(self, rows: Sequence[RowStep]) -> TorchOutputs:
        """See `StepDecoder`. Torch's products would give other bits to a chunk that has company, so
        each is a call of its own; tokens that draw share calls, all of one size."""
        before = [self._chunk(each) for each in rows]
        parts = [self._step(tokens) for tokens in _calls(rows, self._max_rows)]
        if len(parts) == 1:
            logits, states = parts[0]
        else:
            parts.append((self._logits(self._no_states), self._no_states))
            logits, states = (torch.cat(each) for each in zip(*parts, strict=True))
        if not any(each.wants_hidden for each in rows):
            return TorchOutputs(logits, [None] * len(rows))
        of_rows = states.split_with_sizes([len(each.draws) for each in rows])
        hidden = [
            torch.cat([first, rest]).float() if each.wants_hidden else None
            for each, first, rest in zip(rows, before, of_rows, strict=True)
        ]
        return TorchOutputs(logits, hidden)

    def at_once(
        self, tokens: Tensor, positions: Tensor, attend: Attention
    ) -> tuple[Tensor, Tensor]:
        """Logits [n, vocab] float32 for what follows `tokens` [n] at `positions` [n], and the
        states [n, hidden] that they come from."""
        states = self.states(tokens, positions, attend)
        return self._logits(states), states

    def states(self, tokens: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        """What the output head takes for `tokens` [n] at `positions` [n]: [n, hidden]."""
        return self._norm(self._hidden(tokens, positions, attend), self._final_norm)

    def _chunk(self, row: RowStep) -> Tensor:
        """Write the tokens that draw nothing: their states where wanted, else nothing."""
        if not row.num_undrawn:
            return self._no_states
        tokens = torch.tensor(row.token_ids[: row.num_undrawn], device=self._device)
        positions = torch.arange(row.start, row.start + len(tokens), device=self._device)
        attend = ChunkAttention(self._config, self._cache, row.row, row.start, len(tokens))
        hidden = self._hidden(tokens, positions, attend)
        return self._norm(hidden, self._final_norm) if row.wants_hidden else self._no_states

    def _step(self, drawing: Sequence[tuple[int, TokenPlace]]) -> tuple[Tensor, Tensor]:
        """Logits and states of tokens that draw."""
        token_ids, places = zip(*drawing, strict=True)
        num_padding = -len(places) % self._rows_multiple
        padding = [0] * num_padding
        tokens, positions = torch.tensor(
            [[*token_ids, *padding], [*(each.position for each in places), *padding]],
            device=self._device,
        )
        attention = StepAttention(self._config, self._cache, places, num_padding)
        logits, states = self.at_once(tokens, positions, attention)
        return logits[: len(places)], states[: len(places)]

    def _logits(self, states: Tensor) -> Tensor:
        return capped(self._head(states), self._config)

    def _hidden(self, tokens: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        """All layers over `tokens` [n] at `positions` [n]: [n, hidden]."""
        config = self._config
        scale = config.residual_multiplier
        turns = self._rope.at(positions)
        x = F.embedding(tokens, self._embedding) * self._embedding_multiplier
        for index, layer in enumerate(self._layers):
            normed = self._norm(x, layer.attention_norm)
            attention = attend(index, *self._project(normed, layer, turns[index]), layer.sinks)
            attention = self._norm(layer.out(attention), layer.attention_output_norm)
            if not config.is_parallel:
                x = torch.add(x, attention, alpha=scale)
            if not config.is_parallel or layer.mlp_norm is not None:
                normed = self._norm(x, layer.mlp_norm)
            mlp = self._norm(layer.mlp(normed), layer.mlp_output_norm)
            x = torch.add(x, attention + mlp if config.is_parallel else mlp, alpha=scale)
        return x

    def _project(
        self, x: Tensor, layer: Layer, turns: TensorTurns | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [n, heads, head_dim], keys and values [n, kv_heads, head_dim], rope applied."""
        config = self._config
        qkv = layer.qkv(x).view(-1, config.num_qkv_heads, config.head_dim)
        qk, values = qkv.split_with_sizes(
            [config.num_heads + config.num_kv_heads, config.num_kv_heads], 1
        )
        if layer.qk_norm is not None:
            qk = self._normed_heads(qk) * layer.qk_norm
        queries, keys = turn(qk, turns).split_with_sizes([config.num_heads, config.num_kv_heads], 1)
        if turns is not None and turns.query_scales is not None:
            queries = queries * turns.query_scales
        return queries, keys, values

    def _normed_heads(self, qk: Tensor) -> Tensor:
        """[n, heads + kv_heads, head_dim]"""
        config = self._config
        if not config.is_qk_norm_whole:
            return F.rms_norm(qk, (config.head_dim,), eps=config.norm_eps)
        parts = qk.split_with_sizes([config.num_heads, config.num_kv_heads], 1)
        return torch.cat([F.rms_norm(x, x.shape[1:], eps=config.norm_eps) for x in parts], 1)

    def _norm(self, x: Tensor, norm: Affine | None) -> Tensor:
        """`x` as it is where there is no such norm."""
        if norm is None:
            return x
        shape, eps = (self._config.hidden_size,), self._config.norm_eps
        if self._config.norm == "rms":
            return F.rms_norm(x, shape, norm.weight, eps)
        return F.layer_norm(x, shape, norm.weight, norm.bias, eps)


def capped(logits: Tensor, config: ModelConfig) -> Tensor:
    """What an output head makes, as float32, divided and softly capped where the model has it."""
    divisor, softcap = config.logits_divisor, config.logits_softcap
    logits = logits.float() if divisor == 1.0 else logits.float() / divisor
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _calls(rows: Sequence[RowStep], most: int) -> Iterator[list[tuple[int, TokenPlace]]]:
    """Tokens that draw, at most `most` at once; a prompt that is scored is a call of its own."""
    waiting: list[tuple[int, TokenPlace]] = []
    for each in rows:
        tokens = list(placed(each, each.num_undrawn))
        if tokens and each.draws[0].known_id is not None:
            if waiting:
                yield waiting
                waiting = []
            yield tokens
            continue
        waiting += tokens
        while len(waiting) >= most:
            yield waiting[:most]
            waiting = waiting[most:]
    if waiting:
        yield waiting


def placed(row: RowStep, first: int) -> Iterator[tuple[int, TokenPlace]]:
    """A row's tokens from index `first` on, and where they are."""
    positions = row.positions
    branches: list[Sequence[int] | None] = [None] * len(positions)
    if row.parents is not None:
        for index, parent in enumerate(row.parents):
            before = (branches[parent] or ()) if parent >= 0 else ()
            branches[index] = [*before, row.start + index]
    for index in range(first, len(positions)):
        place = TokenPlace(row.row, positions[index], row.start + index, branches[index])
        yield row.token_ids[index], place


def _affine(parameters: TorchParameters, name: str) -> Affine | None:
    tensors = parameters.tensors
    if f"{name}.weight" not in tensors:
        return None
    return Affine(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))


def _layer(
    config: ModelConfig, parameters: TorchParameters, index: int, rows_multiple: int
) -> Layer:
    def affine(name: str) -> Affine | None:
        return _affine(parameters, f"layers.{index}.{name}")

    def linear(name: str) -> Linear:
        return parameters.linear(f"layers.{index}.{name}.weight", f"layers.{index}.{name}.bias")

    latent = config.latent
    return Layer(
        attention_norm=affine("attention_norm"),
        qkv=linear("qkv") if latent is None else latent_qkv(config, latent, parameters, index),
        qk_norm=parameters.qk_norm(config, index),
        sinks=parameters.tensors.get(f"layers.{index}.sinks"),
        out=linear("out") if latent is None else LatentOut(config, linear("out")),
        attention_output_norm=affine("attention_output_norm"),
        mlp_norm=affine("mlp_norm"),
        mlp=make_mlp(config, parameters, index, rows_multiple),
        mlp_output_norm=affine("mlp_output_norm"),
    )
