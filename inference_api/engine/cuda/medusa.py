"""Medusa heads by torch, on any device: see `cpu.medusa`."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.engine.cuda.decoder import capped
from inference_api.engine.cuda.parameters import TorchParameters
from inference_api.engine.medusa_tree import tree_paths
from inference_api.kernels.interface import Floats
from inference_api.loading.config import ModelConfig
from inference_api.loading.heads import MedusaFile
from inference_api.loading.layout import HEAD
from inference_api.runner import HeadGuesses, Hidden


class TorchMedusaHeads:
    """`DraftHeads` for a model that torch runs, in its precision. Decode thread only."""

    def __init__(self, file: MedusaFile, config: ModelConfig, parameters: TorchParameters) -> None:
        """`parameters` are the model's."""
        like = parameters.tensors["final_norm.weight"]
        self.paths = tree_paths(file, config)
        self._num_heads = max(map(len, self.paths))
        self._num_ranks = 1 + max(map(max, self.paths))
        self._config = config
        self._layers = [
            (_stacked(weights).to(like).mT, _stacked(biases).to(like)[:, None])
            for weights, biases in zip(
                zip(*file.weights[: self._num_heads], strict=True),
                zip(*file.biases[: self._num_heads], strict=True),
                strict=True,
            )
        ]  # [heads, inputs, outputs]; [heads, 1, outputs]
        self._token_ids = None
        if file.token_ids is not None:
            self._token_ids = torch.from_numpy(file.token_ids).to(like.device)
        chosen = slice(None) if self._token_ids is None else self._token_ids
        if file.outputs is None:
            self._outputs = parameters.matrix(HEAD).to(like)[chosen]
        else:
            outputs = _stacked(file.outputs[: self._num_heads]).to(like)
            self._outputs = outputs[:, chosen]

    @torch.inference_mode()
    def guess(self, hidden: Sequence[Hidden]) -> HeadGuesses:
        states = _stacked(hidden).to(self._outputs)
        states = states.expand(self._num_heads, -1, -1)
        for weights, biases in self._layers:
            states = states + F.silu(torch.baddbmm(biases, states, weights))
        likelihoods = capped(states @ self._outputs.mT, self._config).softmax(-1)
        probabilities, token_ids = likelihoods.transpose(0, 1).topk(self._num_ranks)
        if self._token_ids is not None:
            token_ids = self._token_ids[token_ids]
        return HeadGuesses(token_ids.cpu().numpy(), probabilities.cpu().numpy())


def _stacked(arrays: Sequence[Floats]) -> Tensor:
    return torch.from_numpy(np.stack(arrays))
