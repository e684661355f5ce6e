"""Counter-based random numbers: a pure function of (seed, position), with no state to share.

The mixer is that of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, OOPSLA 2014). A seed's stream starts at the mixed seed, so that the streams of
neighbouring seeds are not shifted copies of each other.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

U64 = np.uint64
MASK_64 = (1 << 64) - 1
GOLDEN_GAMMA = U64(0x9E3779B97F4A7C15)
DOUBLE_BITS = 53


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """Returns a number in (0, 1] for each pair of a seed (modulo 2**64) and a position >= 0."""
    keys = _mixed(np.array([seed & MASK_64 for seed in seeds], dtype=U64))
    bits = splitmix64(keys, np.array(positions, dtype=U64))
    numerators = (bits >> U64(64 - DOUBLE_BITS)) + U64(1)
    return numerators.astype(np.float64) * 2.0**-DOUBLE_BITS


def splitmix64(states: NDArray[np.uint64], steps: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns output number `steps` (from 0) of the SplitMix64 generators started at `states`."""
    return _mixed(states + (steps + U64(1)) * GOLDEN_GAMMA)


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U64(27))) * U64(0x94D049BB133111EB)
    return z ^ (z >> U64(31))
