"""Muon for the matrices, AdamW for embeddings and norms; gradients are averaged over processes.

Muon: K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). The
momentum of a matrix is replaced by the nearest semi-orthogonal one, found by a few Newton-Schulz
steps. Each process orthogonalises its share of the matrices and the results are summed.
"""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalise(gradient: Tensor, dtype: torch.dtype, steps: int = 5) -> Tensor:
    a, b, c = _NEWTON_SCHULZ
    is_tall = gradient.shape[0] > gradient.shape[1]
    x = (gradient.T if is_tall else gradient).to(dtype)
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.T if is_tall else x
    return result.to(gradient.dtype)


def sum_over_processes(tensors: Sequence[Tensor]) -> None:
    """Sums each tensor in place over all processes, in one message."""
    if dist.get_world_size() == 1:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    offset = 0
    for tensor in tensors:
        tensor.copy_(flat[offset : offset + tensor.numel()].view_as(tensor))
        offset += tensor.numel()


class Optimizer:
    """One update of all parameters; every process ends a step with the same weights. `dtype` is
    that of Muon's products."""

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype,
        *,
        matrix_lr: float = 0.02,
        other_lr: float = 3e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.005,
    ) -> None:
        named = list(model.named_parameters())
        self._matrices = [p for name, p in named if p.dim() == 2 and "embed" not in name]
        self._others = [p for name, p in named if p.dim() != 2 or "embed" in name]
        self._momenta = [torch.zeros_like(p) for p in self._matrices]
        self._adam = torch.optim.AdamW(
            self._others, lr=other_lr, betas=(0.9, 0.95), weight_decay=0.0
        )
        self._dtype = dtype
        self._matrix_lr = matrix_lr
        self._other_lr = other_lr
        self._momentum = momentum
        self._weight_decay = weight_decay

    def step(self, lr_scale: float) -> None:
        self._average_gradients()
        self._step_matrices(self._matrix_lr * lr_scale)
        for group in self._adam.param_groups:
            group["lr"] = self._other_lr * lr_scale
        self._adam.step()
        for parameter in (*self._matrices, *self._others):
            parameter.grad = None

    def state_dict(self) -> dict[str, object]:
        return {"momenta": self._momenta, "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        momenta, adam = state["momenta"], state["adam"]
        assert isinstance(momenta, list)
        assert isinstance(adam, dict)
        self._momenta = momenta
        self._adam.load_state_dict(adam)

    def _average_gradients(self) -> None:
        gradients = [p.grad for p in (*self._matrices, *self._others) if p.grad is not None]
        sum_over_processes(gradients)
        for gradient in gradients:
            gradient /= dist.get_world_size()

    @torch.no_grad()
    def _step_matrices(self, lr: float) -> None:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        updates = []
        for i, (parameter, momentum) in enumerate(zip(self._matrices, self._momenta, strict=True)):
            assert parameter.grad is not None
            momentum.mul_(self._momentum).add_(parameter.grad)
            if i % world_size == rank:
                nesterov = parameter.grad.add(momentum, alpha=self._momentum)
                updates.append(orthogonalise(nesterov, self._dtype).contiguous())
            else:
                updates.append(torch.zeros_like(parameter))
        sum_over_processes(updates)
        for parameter, update in zip(self._matrices, updates, strict=True):
            scale = math.sqrt(max(1.0, parameter.shape[0] / parameter.shape[1]))
            parameter.mul_(1 - lr * self._weight_decay).add_(update, alpha=-lr * scale)
