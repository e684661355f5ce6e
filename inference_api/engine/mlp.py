"""What follows attention in a layer: one MLP for all tokens, or a mixture of experts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.engine.linear import Linear
from inference_api.engine.loading.config import MixtureConfig, ModelConfig
from inference_api.engine.loading.layout import ROUTER
from inference_api.engine.loading.weights import Parameters

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class Mlp(Protocol):
    """[n, hidden] to [n, hidden]."""

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """One for all tokens. `activate`: from what `up` makes to what `down` takes."""

    up: Linear
    down: Linear
    activate: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.activate(self.up(x)))


def _activation(config: ModelConfig) -> Callable[[Tensor], Tensor]:
    """[n, ffn] to the same; gated: [n, 2 ffn] to [n, ffn], the first half lets the second pass."""
    activation, swiglu = ACTIVATIONS[config.activation], config.swiglu

    def pass_gates(gates_and_up: Tensor) -> Tensor:
        gate, up = gates_and_up.chunk(2, dim=-1)
        if swiglu is None:
            return activation(gate) * up
        gate, up = gate.clamp(max=swiglu.limit), up.clamp(-swiglu.limit, swiglu.limit)
        return gate * torch.sigmoid(swiglu.alpha * gate) * (up + 1)

    return pass_gates if config.is_mlp_gated else activation


@dataclass(frozen=True, slots=True)
class Mixture:
    """A few of many experts for each token: see `MixtureConfig`.

    A token's experts are added in the order of their numbers, and each is given `rows_multiple`
    rows or a multiple, the rest of them padding: a token's numbers depend on that token alone.
    """

    config: MixtureConfig
    router: Linear  # float32
    experts: Sequence[Mlp]
    rows_multiple: int

    def __call__(self, x: Tensor) -> Tensor:
        chosen, shares = self._choose(x)
        out = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            rows, ranks = torch.where(chosen == expert)
            given = F.pad(x[rows], (0, 0, 0, -len(rows) % self.rows_multiple))
            out[rows] += self.experts[expert](given)[: len(rows)] * shares[rows, ranks, None]
        return out

    def _choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of experts [n, experts_per_token] and their shares, the largest first."""
        # A sort and not topk, which may choose either of two equals.
        logits, experts = self.router(x.float()).sort(stable=True, dim=-1, descending=True)
        few = self.config.experts_per_token
        counted = few if self.config.is_renormalised else len(self.experts)
        shares = logits[:, :counted].softmax(-1)[:, :few]
        return experts[:, :few], shares.to(x.dtype)


def make_mlp(config: ModelConfig, parameters: Parameters, layer: int, rows_multiple: int) -> Mlp:
    """`rows_multiple`: see `Mixture`."""
    name, activate = f"layers.{layer}", _activation(config)
    mixture = config.mixture_of(layer)
    if mixture is None:
        up, down = (
            parameters.linear(f"{name}.{each}.weight", f"{name}.{each}.bias")
            for each in ("up", "down")
        )
        return DenseMlp(up, down, activate)
    ups, downs = (
        parameters.linears(f"{name}.{each}.weight", f"{name}.{each}.bias", mixture.num_experts)
        for each in ("up", "down")
    )
    experts = [DenseMlp(up, down, activate) for up, down in zip(ups, downs, strict=True)]
    router = parameters.linear(f"{name}{ROUTER}.weight", f"{name}{ROUTER}.bias")
    return Mixture(mixture, router, experts, rows_multiple)
