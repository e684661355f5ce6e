"""The part of a layer after attention: one MLP for all tokens, or a mixture of experts, on this
device or on the CPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.engine.cpu.decoder import KernelDecoder
from inference_api.engine.cuda.parameters import Linear, TorchParameters, summed
from inference_api.loading.config import ExpertGroups, LayerRange, MixtureConfig, ModelConfig
from inference_api.loading.families.layer_plan import ROUTER
from inference_api.loading.settling import expert_layers

MIN_SHARE_SUM = 1e-20  # keeps a sum of sigmoids from dividing by zero


Mlp = Callable[[Tensor], Tensor]  # [n, hidden] to [n, hidden], whole or in parts: see `Linear`


@dataclass(frozen=True, slots=True)
class Mixture:
    """A few of many experts for each token, and the shared ones: see `MixtureConfig`.

    A token's experts are added in the order of their numbers, and each expert gets a multiple of
    `rows_multiple` rows, padded if needed: a token's numbers depend on that token alone.
    """

    config: MixtureConfig
    router: Linear  # float32
    experts: Sequence[Mlp]
    rows_multiple: int
    selection_bias: Tensor | None = None  # [experts] float32
    shared: Mlp | None = None

    def __call__(self, x: Tensor, num_tokens: int) -> Tensor:
        """Rows after the first `num_tokens` are absent tokens, which pass no expert."""
        chosen, shares = self._choose(x)
        chosen = chosen[:num_tokens]
        out = torch.zeros_like(x) if self.shared is None else summed(self.shared(x), x.dtype)
        for expert in chosen.unique().tolist():
            rows, ranks = torch.where(chosen == expert)
            padded = F.pad(x[rows], (0, 0, 0, -len(rows) % self.rows_multiple))
            outputs = summed(self.experts[expert](padded), x.dtype)
            out[rows] += outputs[: len(rows)] * shares[rows, ranks, None]
        return out

    def _choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the numbers of experts [n, experts_per_token] and their shares, best first."""
        config, logits = self.config, self.router(x.float())
        scores = logits.sigmoid() if config.scoring == "sigmoid" else logits.softmax(-1)
        preferences = logits if self.selection_bias is None else scores + self.selection_bias
        if config.groups is not None and config.groups.num_scored > 1 and preferences is logits:
            preferences = scores  # groups are compared by sums of these
        if config.groups is not None:
            preferences = _of_best_groups(preferences, config.groups)
        experts = _best_first(preferences)[:, : config.experts_per_token]
        shares = scores.gather(-1, experts)
        if config.is_renormalised:
            shares = shares / (shares.sum(-1, keepdim=True) + MIN_SHARE_SUM)
        return experts, (shares * config.scale).to(x.dtype)


class CpuExperts:
    """A layer's experts and the norms around them, computed by the kernels in the host's memory.
    Decode thread only."""

    def __init__(self, decoder: KernelDecoder, before: Tensor, after: Tensor) -> None:
        """`decoder` has this layer alone. A GPU copies to `before` and from `after`, [tokens,
        hidden] float32, which layers may share."""
        self._decoder, self._before, self._after = decoder, before, after

    def __call__(self, x: Tensor, num_tokens: int) -> Tensor:
        """Change `x` from the residual before the MLP to the one after the layer, and return it.
        Rows after the first `num_tokens` are absent tokens and do not change."""
        before, after = self._before[:num_tokens], self._after[:num_tokens]
        before.copy_(x[:num_tokens].float(), non_blocking=True)
        if x.is_cuda:  # also waits for the previous layer's copy from `after`
            torch.cuda.current_stream().synchronize()
        self._decoder.pass_through(before.numpy(), after.numpy())
        x[:num_tokens] = after.to(x.device, non_blocking=True)
        return x


def without_experts(config: ModelConfig, count: int) -> ModelConfig:
    """Returns the config without the experts of the last `count` layers that have any."""
    layers = expert_layers(config)
    return replace(config, experts_elsewhere=frozenset(layers[len(layers) - count :]))


def experts_alone(config: ModelConfig, layer: int) -> ModelConfig:
    """Returns a model of one layer, with only the part that `without_experts` leaves out of it."""
    alone = replace(config.part(LayerRange(layer, layer + 1)), mlp_layers=frozenset((layer,)))
    return replace(alone, has_ends=False, has_sinks=False)


def _of_best_groups(preferences: Tensor, groups: ExpertGroups) -> Tensor:
    """Returns the preferences [n, experts], with minus infinity outside the best groups."""
    by_group = preferences.view(len(preferences), groups.num_groups, -1)
    best = by_group.sort(dim=-1, descending=True).values[..., : groups.num_scored]
    rest = _best_first(best.sum(-1))[:, groups.groups_per_token :, None]
    rest = rest.expand(-1, -1, by_group.shape[-1])
    return by_group.scatter(1, rest, -torch.inf).flatten(1)


def _best_first(preferences: Tensor) -> Tensor:
    """Returns indices, best first. Sorts, because topk may choose either of two equals."""
    return torch.argsort(preferences, dim=-1, descending=True, stable=True)


def make_mlp(
    config: ModelConfig,
    parameters: TorchParameters,
    layer: int,
    gate: Callable[[Tensor], Tensor],
    rows_multiple: int,
) -> Mlp | Mixture:
    """`gate`: see `Operations`. `rows_multiple`: see `Mixture`."""
    name = f"layers.{layer}"
    mixture = config.mixture_of(layer)

    def through(up: Linear, down: Linear) -> Mlp:
        return lambda x: down(gate(up(x)))

    def dense(prefix: str = "") -> Mlp:
        names = (f"{name}.{prefix}{each}" for each in ("up", "down"))
        return through(*map(parameters.linear, names))

    if mixture is None:
        return dense()
    ups, downs = (
        parameters.linears(f"{name}.{each}", mixture.num_experts) for each in ("up", "down")
    )
    return Mixture(
        mixture,
        parameters.linear(f"{name}{ROUTER}"),
        [*map(through, ups, downs)],
        rows_multiple,
        parameters.tensors.get(f"{name}{ROUTER}.selection_bias"),
        dense("shared_") if mixture.shared_ffn_size else None,
    )
