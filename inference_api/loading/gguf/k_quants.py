"""K-quants of GGUF files, to the kernels' blocks: the same integers in another order.

`kernels/src/layout.h` says how a block looks.
"""

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from inference_api.kernels.library import PackedWeight, UnusableWeight
from inference_api.kernels.packing import GROUP, K_BITS, PANEL, SUPER_GROUP

QUAD, HALVES = 4, 2  # two quads share their bytes
GROUPS = SUPER_GROUP // GROUP
ROWS_AT_A_TIME = 256  # bounds the memory that conversion takes

Bytes = NDArray[np.uint8]

_STORED = {
    GGMLQuantizationType.Q4_K: np.dtype(
        [
            ("units", np.uint16, (2,)),  # one for scales, one for minima
            ("scales", np.uint8, (3, 4)),
            ("values", np.uint8, (GROUPS // HALVES, GROUP)),
        ]
    )
}
_BLOCKS = {
    GGMLQuantizationType.Q4_K: np.dtype(
        [
            ("units", np.uint16, (2, PANEL)),
            ("low", np.uint8, (GROUPS, PANEL)),
            ("high", np.uint8, (GROUPS // 2, PANEL)),
            ("pairs", np.uint8, (GROUPS, GROUP // QUAD // HALVES, PANEL, QUAD)),
        ]
    )
}


def write_superblocks(
    kind: GGMLQuantizationType, data: Bytes, packed: PackedWeight, first_output: int
) -> None:
    """Outputs `first_output`… of `packed`: `data` [rows, bytes] of a file. Raises
    UnusableWeight."""
    if K_BITS.get(kind.name) != packed.bits:
        raise UnusableWeight(f"it is {kind.name} by now")
    blocks = packed.blocks.view(_BLOCKS[kind]).reshape(-1, packed.inputs // SUPER_GROUP)
    for first in range(0, len(data), ROWS_AT_A_TIME):
        stored = np.ascontiguousarray(data[first : first + ROWS_AT_A_TIME]).view(_STORED[kind])
        if not np.isfinite(stored["units"].view(np.float16)).all():
            raise UnusableWeight("it has weights that are not finite")
        begin = first_output + first
        panels, lanes = np.divmod(np.arange(begin, begin + len(stored)), PANEL)
        low, high = _scales(stored["scales"])
        blocks["units"][panels, ..., lanes] = stored["units"]
        blocks["low"][panels, ..., lanes] = low
        blocks["high"][panels, ..., lanes] = high
        blocks["pairs"][panels, ..., lanes, :] = _pairs(stored["values"])


def _scales(stored: Bytes) -> tuple[Bytes, Bytes]:
    """From [..., 3, 4] the low four bits of eight scales, and above them of minima, and the high
    two of both, of two groups in a byte.

    Files have the first four scales, then the first four minima, in the low six bits of bytes whose
    high two bits are those of the last four; then the low bits of these.
    """
    scales, minima, last = stored[..., 0, :], stored[..., 1, :], stored[..., 2, :]
    first: Bytes = scales & np.uint8(0x0F) | minima << np.uint8(4)
    low = np.concatenate((first, last), -1)
    shifts = np.array([[4], [6]], np.uint8)  # where high bits are: first groups', last ones'
    two = np.uint8(3)
    both = scales[..., None, :] >> shifts & two
    both |= (minima[..., None, :] >> shifts & two) << np.uint8(2)
    high: Bytes = both[..., 0::2] | both[..., 1::2] << np.uint8(4)
    return low, high.reshape(*low.shape[:-1], -1)


def _pairs(stored: Bytes) -> Bytes:
    """From [..., 4, 32], where two groups share bytes, to [..., 8, 4, 4], where two quads do."""
    values = np.stack((stored & np.uint8(0x0F), stored >> np.uint8(4)), -2)
    quads = values.reshape(*stored.shape[:-2], GROUPS, -1, HALVES, QUAD)
    pairs: Bytes = quads[..., 0, :] | quads[..., 1, :] << np.uint8(4)
    return pairs
