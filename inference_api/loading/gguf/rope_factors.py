"""Recovers the rotary scaling from the factors in a GGUF file, which slow each pair."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_api.errors import StartupError

LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR = 1.0, 4.0  # llama3's rope has these; GGUF files do not
FACTOR_TOLERANCE = 1e-3
_STILL_FACTOR = 1e29  # files have 1e30 for pairs that do not turn; above this a pair is still


def rope_of_factors(factors: NDArray[np.float64], theta: float) -> dict[str, Any]:
    """Returns the scaling that gives these factors. Some pairs may not turn at all."""
    turned = factors < _STILL_FACTOR
    if turned.all():
        return llama3_rope(factors, theta)
    if not (np.all(factors[turned] == 1.0) and np.all(turned[:-1] >= turned[1:])):
        raise StartupError(
            ["The GGUF file's rope_freqs.weight is no proportional rope; choose another file."]
        )
    return {"rope_type": "proportional", "partial_rotary_factor": float(turned.mean())}


def llama3_rope(factors: NDArray[np.float64], theta: float) -> dict[str, Any]:
    """Returns the llama3 scaling that gives these factors. Raises StartupError if none does.

    Between the pairs that keep their frequency and the pairs slowed by the whole factor, the kept
    share grows linearly with the turns over the original context (see `rope`). One such pair
    determines the context; all others must then agree.
    """
    factor = float(factors.max())
    base = theta ** -(np.arange(len(factors)) / len(factors))
    between = np.flatnonzero((factors > 1 + FACTOR_TOLERANCE) & (factors < factor * 0.99))
    if factor > 1 and len(between):
        pair = between[0]
        kept = (1 / factors[pair] - 1 / factor) / (1 - 1 / factor)
        turns = LOW_FREQ_FACTOR + kept * (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)
        context = round(turns * 2 * math.pi / base[pair])
        all_turns = context * base / (2 * math.pi)
        shares = (all_turns - LOW_FREQ_FACTOR) / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)
        shares = np.clip(shares, 0, 1)
        if np.allclose(1 / (shares + (1 - shares) / factor), factors, rtol=FACTOR_TOLERANCE):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LOW_FREQ_FACTOR,
                "high_freq_factor": HIGH_FREQ_FACTOR,
                "original_max_position_embeddings": context,
            }
    raise StartupError(
        "The GGUF file's rope_freqs.weight is no llama3 scaling; choose the model's "
        "safetensors or another model."
    )
