"""Makes a prompt's embedding from the hidden states of its tokens. Decode thread only."""

import numpy as np
from numpy.typing import NDArray

from inference_api.request import Pooling
from inference_api.runner import Hidden


class PooledStates:
    """The mean of the hidden states of a prompt's tokens, or the state of its last token."""

    def __init__(self, pooling: Pooling) -> None:
        self._is_mean = pooling == "mean"
        self._vector: NDArray[np.float64] | None = None

    def add(self, hidden: Hidden) -> None:
        """Add the hidden states [tokens, hidden size] of the next tokens. They are summed one by
        one, so that the mean's bits do not depend on how the prompt was cut into chunks."""
        states = hidden.astype(np.float64)
        if not self._is_mean:
            self._vector = states[-1]
        elif self._vector is None:
            self._vector = states.sum(axis=0)
        else:
            self._vector = np.vstack([self._vector, states]).sum(axis=0)

    def embedding(self) -> bytes:
        """Returns the vector, of unit length, as float32."""
        assert self._vector is not None, "states were added"
        # Scaling to unit length makes the sum and the mean equal.
        length = float(np.linalg.norm(self._vector)) or 1.0
        return (self._vector / length).astype("<f4").tobytes()
