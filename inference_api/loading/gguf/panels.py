"""Reorders the integers of GGUF's types for the kernels, which then use them unrounded.

A file stores a block's values in planes of a few bits each: if a plane has n bytes, the bit fields
within a byte belong to inputs that are n apart. In the kernels' panels, the bit fields within a
byte belong to successive quads of a group: see `kernels/src/layout.h`. Values that are indices of
tables stay as they are: see `layout_codes.h`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from inference_api.kernels.library import PackedWeight, UnusableWeight
from inference_api.kernels.packing import (
    FACTOR_OUTPUTS,
    FILE_BITS,
    GROUP,
    PANEL,
    SUPER_GROUP,
    group_inputs,
)

QUAD = 4
FOUR, TWO_BITS = np.uint8(4), np.uint8(3)
MINIMUM_SIGN = np.array([0, 0x8000], np.uint16)  # negates the second of two half floats
GROUPS, SMALL_GROUPS = SUPER_GROUP // GROUP, SUPER_GROUP // 16  # small: in Q2_K, Q3_K and Q6_K
EIGHTS = SUPER_GROUP // 8
SMALLEST = 16  # inputs of a group in NVFP4
SIGN, NO_SCALE = np.uint8(0x80), 0x7F  # in NVFP4's scales: an unused bit; a code for 0
SCALE_HALF = np.float32(2**7)  # 2^8 that scales lack as halves, and 1/2 for doubled values
MAX_EXPONENT = 252  # largest MXFP4 exponent at which all values are finite floats
ROWS_AT_A_TIME = 256  # bounds the memory of a conversion

Bytes = NDArray[np.uint8]

_UNITS = ("units", np.uint16, (1,))
_TWO_UNITS = ("units", np.uint16, (2,))
_SIX_BITS = ("scales", np.uint8, (3, 4))
_HALVES = ("low", np.uint8, (GROUP // 2,))
_FIFTHS = ("high", np.uint8, (GROUP // 8, 1))
_LOW = ("low", np.uint8, (GROUPS // 2, GROUP))
_EIGHTS, _QUADS = (("places", np.uint8, (SUPER_GROUP // each,)) for each in (8, QUAD))
_HIGH, _SCALES = ((name, np.uint8, (GROUPS,)) for name in ("high", "scales"))
_FIELDS: Mapping[str, list[Any]] = {
    "Q8_0": [_UNITS, ("values", np.int8, (GROUP,))],
    "Q4_0": [_UNITS, _HALVES],
    "Q4_1": [_TWO_UNITS, _HALVES],
    "Q5_0": [_UNITS, _FIFTHS, _HALVES],
    "Q5_1": [_TWO_UNITS, _FIFTHS, _HALVES],
    "Q2_K": [("scales", np.uint8, (SMALL_GROUPS,)), ("crumbs", np.uint8, (2, GROUP)), _TWO_UNITS],
    "Q3_K": [
        ("high", np.uint8, (GROUP,)),
        ("crumbs", np.uint8, (2, GROUP)),
        ("scales", np.uint8, (12,)),
        _UNITS,
    ],
    "Q4_K": [_TWO_UNITS, _SIX_BITS, _LOW],
    "Q5_K": [_TWO_UNITS, _SIX_BITS, ("high", np.uint8, (GROUP,)), _LOW],
    "Q6_K": [
        ("low", np.uint8, (2, SUPER_GROUP // 4)),
        ("high", np.uint8, (2, GROUP)),
        ("scales", np.int8, (SMALL_GROUPS,)),
        _UNITS,
    ],
    "IQ1_S": [_UNITS, _EIGHTS, ("high", np.uint16, (GROUPS,))],
    "IQ1_M": [_EIGHTS, ("high", np.uint8, (SMALL_GROUPS,)), ("scales", np.uint16, (4,))],
    "IQ2_XXS": [_UNITS, ("words", np.uint32, (2 * GROUPS,))],
    "IQ2_XS": [_UNITS, ("places", np.uint16, (EIGHTS,)), _SCALES],
    "IQ2_S": [_UNITS, _EIGHTS, ("signs", np.uint8, (EIGHTS,)), _HIGH, _SCALES],
    "IQ3_XXS": [_UNITS, _QUADS, ("signs", np.uint32, (GROUPS,))],
    "IQ3_S": [
        _UNITS,
        _QUADS,
        _HIGH,
        ("signs", np.uint8, (EIGHTS,)),
        ("scales", np.uint8, (GROUPS // 2,)),
    ],
    "IQ4_NL": [_UNITS, _HALVES],
    "IQ4_XS": [
        _UNITS,
        ("scales_high", np.uint8, (GROUPS // 4,)),
        ("scales_low", np.uint8, (GROUPS // 2,)),
        ("low", np.uint8, (GROUPS, GROUP // 2)),
    ],
    "MXFP4": [("exponents", np.uint8, (1,)), _HALVES],
    "NVFP4": [("scales", np.uint8, (4,)), ("low", np.uint8, (4, SMALLEST // 2))],
}
STORED = {  # dtypes of blocks in files
    GGMLQuantizationType[name]: np.dtype(fields) for name, fields in _FIELDS.items()
}


class _Form(NamedTuple):
    """The part of a kernel block for one output: fields for scales (name, type, count), then
    `groups` times the planes of values (name, bits)."""

    scales: Sequence[tuple[str, Any, int]]
    num_groups: int
    planes: Mapping[str, int]

    def block(self, inputs: int) -> np.dtype[Any]:
        quads = inputs // self.num_groups // QUAD
        planes = [
            (name, np.uint8, (quads * bits // 8, PANEL, QUAD)) for name, bits in self.planes.items()
        ]
        scales = [(name, kind, (count, PANEL)) for name, kind, count in self.scales]
        return np.dtype([*scales, ("groups", planes, (self.num_groups,))] if planes else scales)


def _as_in_file(name: str, *order: str) -> _Form:
    """Returns the form of a type whose values are in tables: its fields, in this order."""
    fields = {field: (field, kind, shape[0]) for field, kind, shape in _FIELDS[name]}
    return _Form([fields[each] for each in order], 1, {})


_UNIT, _UNIT_AND_MINIMUM = ("units", np.uint16, 1), ("units", np.uint16, 2)
_K_SCALES = [_UNIT_AND_MINIMUM, ("low", np.uint8, GROUPS), ("high", np.uint8, GROUPS // 2)]
_IQ4_SCALES = [("scales_low", np.uint8, GROUPS // 2), ("scales_high", np.uint8, GROUPS // 4)]
_FOUR, _FIVE, _SIX = {"low": 4}, {"low": 4, "high": 1}, {"low": 4, "high": 2}
_FORMS = {
    "Q4_1": _Form([_UNIT_AND_MINIMUM], 1, _FOUR),
    "Q5_0": _Form([_UNIT], 1, _FIVE),
    "Q5_1": _Form([_UNIT_AND_MINIMUM], 1, _FIVE),
    "Q2_K": _Form(
        [_UNIT_AND_MINIMUM, ("scales", np.uint8, SMALL_GROUPS)], SMALL_GROUPS, {"crumbs": 2}
    ),
    "Q3_K": _Form([_UNIT, ("scales", np.uint8, 12)], GROUPS, {"crumbs": 2, "high": 1}),
    "Q4_K": _Form(_K_SCALES, GROUPS, _FOUR),
    "Q5_K": _Form(_K_SCALES, GROUPS, _FIVE),
    "Q6_K": _Form([_UNIT, ("scales", np.int8, SMALL_GROUPS)], SMALL_GROUPS, _SIX),
    "IQ1_S": _as_in_file("IQ1_S", "units", "high", "places"),
    "IQ1_M": _as_in_file("IQ1_M", "scales", "high", "places"),
    "IQ2_XXS": _as_in_file("IQ2_XXS", "units", "words"),
    "IQ2_XS": _as_in_file("IQ2_XS", "units", "scales", "places"),
    "IQ2_S": _as_in_file("IQ2_S", "units", "scales", "high", "signs", "places"),
    "IQ3_XXS": _as_in_file("IQ3_XXS", "units", "signs", "places"),
    "IQ3_S": _as_in_file("IQ3_S", "units", "scales", "high", "signs", "places"),
    "IQ4_NL": _Form([_UNIT], 1, _FOUR),
    "IQ4_XS": _Form([_UNIT, *_IQ4_SCALES], GROUPS, _FOUR),
    "MXFP4": _Form([("exponents", np.uint8, 1)], 1, _FOUR),
    "NVFP4": _Form([("scales", np.uint8, 4)], 4, _FOUR),
}


def write_panels(
    kind: GGMLQuantizationType,
    data: Bytes,
    packed: PackedWeight,
    first_output: int,
    factor: float = 1,
) -> None:
    """Write `data` [rows, bytes] of a file to outputs `first_output`, … of `packed`. `factor` is
    for NVFP4, in which eight outputs share one. Raises UnusableWeight."""
    if FILE_BITS.get(kind.name) != packed.bits:
        raise UnusableWeight(f"it is {kind.name} by now")
    form, inputs = _FORMS[kind.name], group_inputs(packed.bits)
    blocks = packed.blocks.view(form.block(inputs)).reshape(-1, packed.inputs // inputs)
    for first in range(0, len(data), ROWS_AT_A_TIME):
        stored = np.ascontiguousarray(data[first : first + ROWS_AT_A_TIME]).view(STORED[kind])
        begin = first_output + first
        panels, lanes = np.divmod(np.arange(begin, begin + len(stored)), PANEL)
        scales = _scales(kind.name, stored)
        for name, _, _ in form.scales:
            blocks[name][panels, ..., lanes] = scales[name]
        for name, bits in form.planes.items():
            values = _fields(stored[name], bits).reshape(*stored.shape, form.num_groups, -1, QUAD)
            blocks["groups"][name][panels, ..., lanes, :] = _packed_fields(values, bits)
    if kind == GGMLQuantizationType.NVFP4:
        _write_factor(factor, blocks["scales"][:, 0], first_output, first_output + len(data))


def _write_factor(factor: float, scales: Bytes, first: int, end: int) -> None:
    """Write the factor of outputs `first` to `end` into the signs of `scales` [panels, 4, 32]: see
    `NvFp4Block`. Raises UnusableWeight."""
    assert first % FACTOR_OUTPUTS == 0
    bits = np.array([np.float32(factor) * SCALE_HALF], "<f4")
    if not np.isfinite(bits).all():
        raise UnusableWeight(f"its factor {factor} is too large or no number")
    signs = np.unpackbits(bits.view(np.uint8), bitorder="little").reshape(4, FACTOR_OUTPUTS)
    outputs = np.arange(first, -(-end // FACTOR_OUTPUTS) * FACTOR_OUTPUTS)
    panels, lanes = np.divmod(outputs, PANEL)
    scales[panels, :, lanes] |= SIGN * signs[:, outputs % FACTOR_OUTPUTS].T


def _scales(kind: str, stored: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
    """Returns by name the kernels' fields except values, changed where the file's differ."""
    if kind == "NVFP4":
        if (stored["scales"] >= SIGN).any():
            raise UnusableWeight("it has scales below zero")
        return {"scales": stored["scales"] * (stored["scales"] != NO_SCALE)}
    if kind == "MXFP4":
        is_finite = stored["exponents"] <= MAX_EXPONENT
    elif kind == "IQ1_M":  # its unit is spread over four scales, four bits in each, lowest first
        bits = (stored["scales"] >> np.uint16(12)) << np.array([0, 4, 8, 12], np.uint16)
        is_finite = np.isfinite(np.bitwise_or.reduce(bits, -1).view(np.float16))
    else:
        is_finite = np.isfinite(stored["units"].view(np.float16))
    if not is_finite.all():
        raise UnusableWeight("it has weights that are not finite")
    match kind:
        case "Q4_1" | "Q5_1":  # minima are added in files, and subtracted here
            return {"units": stored["units"] ^ MINIMUM_SIGN}
        case "Q4_K" | "Q5_K":
            return {"units": stored["units"], **_six_bits(stored["scales"])}
    return {name: stored[name] for name in stored.dtype.names or ()}


def _six_bits(stored: Bytes) -> dict[str, Bytes]:
    """Returns eight 6-bit scales and minima in two fields: bytes with a scale's low four bits below
    a minimum's, and bytes with the high two bits of both, for two groups each.

    In files, the first four scales and then the first four minima are in the low six bits of eight
    bytes. The high two bits of these bytes are the high bits of the last four scales and minima,
    whose low bits follow.
    """
    scales, minima, last = stored[..., 0, :], stored[..., 1, :], stored[..., 2, :]
    first: Bytes = scales & np.uint8(0x0F) | minima << FOUR
    shifts = np.array([[4], [6]], np.uint8)  # to the high bits of the first, last groups
    pairs = scales[..., None, :] >> shifts & TWO_BITS
    pairs |= (minima[..., None, :] >> shifts & TWO_BITS) << np.uint8(2)
    high = (pairs[..., 0::2] | pairs[..., 1::2] << FOUR).reshape(*last.shape[:-1], -1)
    return {"low": np.concatenate((first, last), -1), "high": high}


def _shifts(bits: int) -> Bytes:
    """Returns the shifts of a byte's fields, [fields, 1]."""
    return np.arange(0, 8, bits, dtype=np.uint8)[:, None]


def _fields(plane: Bytes, bits: int) -> Bytes:
    """Returns the fields of a plane's bytes in the order of inputs, […, fields, bytes]."""
    return plane[..., None, :] >> _shifts(bits) & np.uint8(2**bits - 1)


def _packed_fields(quads: Bytes, bits: int) -> Bytes:
    """Returns bytes [groups, bytes, 4] from fields [groups, quads, 4], the first quad lowest."""
    fields = quads.reshape(*quads.shape[:-2], -1, 8 // bits, QUAD)
    joined: Bytes = np.bitwise_or.reduce(fields << _shifts(bits), -2)
    return joined
