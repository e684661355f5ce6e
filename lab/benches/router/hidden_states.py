"""Turns texts into vectors: hidden states of a small model, averaged over the tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModel, AutoTokenizer

LAYER = 4  # the one with the best neighbours among hearth-tiny's five


def mean_states(model_dir: Path) -> Callable[[str], npt.NDArray[np.float32]]:
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model: Any = AutoModel.from_pretrained(model_dir, dtype=torch.float32)

    def state_of(text: str) -> npt.NDArray[np.float32]:  # [hidden_size]
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.inference_mode():
            states = model(ids, output_hidden_states=True).hidden_states[LAYER]
        mean: npt.NDArray[np.float32] = states[0].mean(0).numpy()
        return mean

    return state_of
