"""K-quants and Q5_0 of GGUF files, to the kernels' blocks: the same integers in another order.

`kernels/src/layout.h` says how a block looks.
"""

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from inference_api.kernels.library import PackedWeight, UnusableWeight
from inference_api.kernels.packing import FILE_BITS, GROUP, PANEL, SUPER_GROUP, group_inputs

QUAD, HALVES = 4, 2  # two quads share their bytes
FOUR, TWO_BITS = np.uint8(4), np.uint8(3)
GROUPS, SMALL_GROUPS = SUPER_GROUP // GROUP, SUPER_GROUP // 16  # the small ones are Q6_K's
ROWS_AT_A_TIME = 256  # bounds the memory that conversion takes

Bytes = NDArray[np.uint8]

_UNITS_AND_SCALES = [("units", np.uint16, (2,)), ("scales", np.uint8, (3, 4))]
_LOW = ("low", np.uint8, (GROUPS // HALVES, GROUP))  # four bits of two groups in a byte
STORED = {  # blocks of files
    GGMLQuantizationType.Q8_0: np.dtype(
        [("units", np.uint16, (1,)), ("values", np.int8, (GROUP,))]
    ),
    GGMLQuantizationType.Q4_0: np.dtype(
        [("units", np.uint16, (1,)), ("low", np.uint8, (GROUP // HALVES,))]
    ),
    GGMLQuantizationType.Q5_0: np.dtype(
        [
            ("units", np.uint16, (1,)),
            ("high", np.uint8, (GROUP // 8,)),
            ("low", np.uint8, (GROUP // HALVES,)),
        ]
    ),
    GGMLQuantizationType.Q4_K: np.dtype([*_UNITS_AND_SCALES, _LOW]),
    GGMLQuantizationType.Q5_K: np.dtype([*_UNITS_AND_SCALES, ("high", np.uint8, (GROUP,)), _LOW]),
    GGMLQuantizationType.Q6_K: np.dtype(
        [
            ("low", np.uint8, (2, GROUPS // HALVES // 2, GROUP)),
            ("high", np.uint8, (2, GROUP)),
            ("scales", np.int8, (SMALL_GROUPS,)),
            ("units", np.uint16, (1,)),
        ]
    ),
}


def _block(
    units: int, scales: list[Any], groups: int, has_high: bool, inputs: int = SUPER_GROUP
) -> np.dtype[Any]:
    pairs = ("pairs", np.uint8, (inputs // groups // QUAD // HALVES, PANEL, QUAD))
    values = [pairs, ("high", np.uint8, (PANEL, QUAD))] if has_high else [pairs]
    return np.dtype([("units", np.uint16, (units, PANEL)), *scales, ("groups", values, (groups,))])


_SIX_BITS = [("low", np.uint8, (GROUPS, PANEL)), ("high", np.uint8, (GROUPS // 2, PANEL))]
_BLOCKS = {
    GGMLQuantizationType.Q5_0: _block(1, [], 1, has_high=True, inputs=GROUP),
    GGMLQuantizationType.Q4_K: _block(2, _SIX_BITS, GROUPS, has_high=False),
    GGMLQuantizationType.Q5_K: _block(2, _SIX_BITS, GROUPS, has_high=True),
    GGMLQuantizationType.Q6_K: _block(
        1, [("scales", np.int8, (SMALL_GROUPS, PANEL))], SMALL_GROUPS, has_high=True
    ),
}


def write_superblocks(
    kind: GGMLQuantizationType, data: Bytes, packed: PackedWeight, first_output: int
) -> None:
    """Outputs `first_output`… of `packed`: `data` [rows, bytes] of a file. Raises
    UnusableWeight."""
    if FILE_BITS.get(kind.name) != packed.bits:
        raise UnusableWeight(f"it is {kind.name} by now")
    blocks = packed.blocks.view(_BLOCKS[kind]).reshape(
        -1, packed.inputs // group_inputs(packed.bits)
    )
    for first in range(0, len(data), ROWS_AT_A_TIME):
        stored = np.ascontiguousarray(data[first : first + ROWS_AT_A_TIME]).view(STORED[kind])
        if not np.isfinite(stored["units"].view(np.float16)).all():
            raise UnusableWeight("it has weights that are not finite")
        begin = first_output + first
        panels, lanes = np.divmod(np.arange(begin, begin + len(stored)), PANEL)
        blocks["units"][panels, ..., lanes] = stored["units"]
        for name, numbers in _scales(kind, stored).items():
            blocks[name][panels, ..., lanes] = numbers
        low, high = _values(kind, stored)
        blocks["groups"]["pairs"][panels, ..., lanes, :] = low[..., 0, :] | low[..., 1, :] << FOUR
        if high is not None:
            blocks["groups"]["high"][panels, ..., lanes, :] = high


def _scales(kind: GGMLQuantizationType, blocks: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Q5_0 has only units, and Q6_K's stay as they are; others, [..., 3, 4], become the low four
    bits of eight scales, above them those of minima, and the high two of both, two groups in a
    byte.

    Files have the first four scales, then the first four minima, in the low six bits of bytes whose
    high two bits are those of the last four; then the low bits of these.
    """
    if kind == GGMLQuantizationType.Q5_0:
        return {}
    stored = blocks["scales"]
    if kind == GGMLQuantizationType.Q6_K:
        return {"scales": stored}
    scales, minima, last = stored[..., 0, :], stored[..., 1, :], stored[..., 2, :]
    first: Bytes = scales & np.uint8(0x0F) | minima << FOUR
    shifts = np.array([[4], [6]], np.uint8)  # where high bits are: first groups', last ones'
    both = scales[..., None, :] >> shifts & TWO_BITS
    both |= (minima[..., None, :] >> shifts & TWO_BITS) << np.uint8(2)
    high = (both[..., 0::2] | both[..., 1::2] << FOUR).reshape(*last.shape[:-1], -1)
    return {"low": np.concatenate((first, last), -1), "high": high}


def _values(kind: GGMLQuantizationType, stored: NDArray[Any]) -> tuple[Bytes, Bytes | None]:
    """Returns the low four bits, [..., groups, pairs, 2, 4], and the others of all quads of a group
    in one byte, [..., groups, 4]."""
    is_six = kind == GGMLQuantizationType.Q6_K
    groups = {GGMLQuantizationType.Q6_K: SMALL_GROUPS, GGMLQuantizationType.Q5_0: 1}.get(
        kind, GROUPS
    )
    both = stored["low"] & np.uint8(0x0F), stored["low"] >> FOUR
    low = np.stack(both, -3 if is_six else -2).reshape(*stored.shape, groups, -1, HALVES, QUAD)
    if kind == GGMLQuantizationType.Q4_K:
        return low, None
    bits = 2 if is_six else 1
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    if kind == GGMLQuantizationType.Q5_0:
        high = np.unpackbits(stored["high"], axis=-1, bitorder="little")
    else:
        high = stored["high"][..., None, :] >> shifts & np.uint8(2**bits - 1)
    quads = high.reshape(*stored.shape, groups, -1, QUAD)
    return low, np.bitwise_or.reduce(quads << shifts, -2)
