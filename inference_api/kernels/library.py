"""The library's operations on numpy arrays.

A `Kernels` object is one variant with its own threads. One thread at a time may call its methods,
in a server the decode thread. They release the GIL. Between calls the threads sleep, after
spinning for a few microseconds.
"""

import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_api.errors import StartupError
from inference_api.kernels.build import compiled, library_path, units_here
from inference_api.kernels.compilers import BuildFailed
from inference_api.kernels.interface import Floats, data, ffi, floats
from inference_api.kernels.packing import (
    CACHE_DTYPES,
    FILE_BITS,
    PANEL,
    Bits,
    group_inputs,
    packed_bytes,
)

CACHE_TYPES = {name: number for number, name in enumerate(CACHE_DTYPES)}
PORTABLE = "portable"  # the variant that every processor can run
SOURCE_TYPES = {"float32": 0, "float16": 1, "uint16": 2}  # uint16: the bits of bfloat16


# Temperature (0: the likeliest), top_k (0: all), top_p, min_p; seed and position, both below 2**64,
# which give the random number.
HowToDraw = tuple[float, int, float, float, int, int]


class UnusableWeight(Exception):
    """A weight that cannot be packed; the message says why."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight matrix [outputs, inputs] in packed form. `blocks` must be zeros before `pack`."""

    bits: Bits
    outputs: int
    inputs: int
    blocks: NDArray[np.uint8]

    @staticmethod
    def empty(
        bits: Bits, outputs: int, inputs: int, blocks: NDArray[np.uint8] | None = None
    ) -> "PackedWeight":
        """Returns a matrix of zeros, in the memory `blocks` if given. Raises UnusableWeight if the
        kernels do not support this shape."""
        if inputs % group_inputs(bits):
            raise UnusableWeight(f"its {inputs} inputs are no multiple of {group_inputs(bits)}")
        size = packed_bytes(bits, outputs, inputs)
        assert size == _library().hearth_packed_bytes(bits, outputs, inputs)
        if blocks is None:
            blocks = np.zeros(size, np.uint8)
        assert len(blocks) == size
        return PackedWeight(bits, outputs, inputs, blocks)

    def unpack(self) -> Floats:
        """Returns the weights as floats, [outputs, inputs]."""
        weights = np.empty((self.outputs, self.inputs), np.float32)
        _library().hearth_unpack(
            self.bits, data(self.blocks), self.outputs, self.inputs, floats(weights)
        )
        return weights

    def linear(self, bias: Floats | None = None) -> dict[str, Any]:
        """Returns the fields of a `HearthLinear`. The C struct keeps neither array alive."""
        return {
            "packed": data(self.blocks),
            "bias": _optional(bias),
            "outputs": self.outputs,
            "inputs": self.inputs,
            "bits": self.bits,
        }

    def part(self, begin: int, end: int) -> "PackedWeight":
        """Returns a view of outputs `begin` to `end`. `begin` is a multiple of PANEL."""
        panel_bytes = packed_bytes(self.bits, PANEL, self.inputs)
        blocks = self.blocks[begin // PANEL * panel_bytes : -(-end // PANEL) * panel_bytes]
        return PackedWeight(self.bits, end - begin, self.inputs, blocks)


class StepTokens(NamedTuple):
    """The tokens of a step, as arrays of int64: see `HearthBatch` in `src/interface.h`."""

    ids: "array[int]"
    rows: "array[int]"
    positions: "array[int]"
    outputs: "array[int]"
    slots: "array[int] | None" = None  # None: the same as the positions
    parents: "array[int] | None" = None


class StepStates(NamedTuple):
    """Memory that a step reads and writes, C-contiguous: see `HearthBatch`."""

    logits: Floats | None = None  # result [outputs, vocab], if there are outputs
    hidden: Floats | None = None  # result [tokens, hidden size], if wanted
    before: Floats | None = None  # the residual before these layers, [tokens, hidden size]
    after: Floats | None = None  # result: the residual after them, [tokens, hidden size]


class Kernels:
    """Matrix products and attention, by the best variant this processor has or by a named one."""

    def __init__(self, num_threads: int, variant: str | None = None) -> None:
        """`num_threads` counts the calling thread. Raises StartupError."""
        self._library = _library()
        supported = _variants(self._library)
        self.variant = next(iter(supported)) if variant is None else variant
        if self.variant not in supported:
            raise StartupError(
                f"this processor has no {variant}; choose one of {', '.join(supported)}"
            )
        self._pid = os.getpid()
        self._context = self._library.hearth_create(supported[self.variant], num_threads)
        if not self._context:
            raise StartupError(f"{num_threads} threads could not be started; free memory")

    def __del__(self) -> None:
        # Threads do not survive a fork: a child process has none to wait for.
        if getattr(self, "_context", None) and self._pid == os.getpid():
            self._library.hearth_destroy(self._context)

    def pack(self, weights: NDArray[Any], packed: PackedWeight, first_output: int = 0) -> None:
        """Pack `weights` [n, inputs] into outputs `first_output`, … of `packed`. Call once for each
        output.

        The dtype is one of SOURCE_TYPES. Raises UnusableWeight if a weight is not finite, or too
        large for the packed form.
        """
        outputs, inputs = weights.shape
        assert inputs == packed.inputs
        assert packed.bits not in FILE_BITS.values()  # nothing is rounded to these
        assert 0 <= first_output <= first_output + outputs <= packed.outputs
        weights = np.ascontiguousarray(weights)
        faulty = self._library.hearth_pack(
            self._context,
            packed.bits,
            SOURCE_TYPES[weights.dtype.name],
            data(weights),
            first_output,
            outputs,
            inputs,
            data(packed.blocks),
        )
        if faulty >= 0:
            raise UnusableWeight(f"its row {faulty} has a weight that is not finite or too large")

    def linear(self, x: Floats, weight: PackedWeight, bias: Floats | None = None) -> Floats:
        """Returns `x` [rows, inputs] times the weight, plus bias [outputs]: [rows, outputs].

        With quantised weights, rows are quantised to 8 bits in groups of 32. A row's result depends
        on that row alone, to the bit, and not on the number of threads.
        """
        rows, inputs = x.shape
        assert inputs == weight.inputs
        out = np.empty((rows, weight.outputs), np.float32)
        if rows == 0:
            return out
        failed = self._library.hearth_linear(
            self._context,
            weight.bits,
            data(weight.blocks),
            _optional(bias),
            floats(x),
            rows,
            weight.outputs,
            inputs,
            floats(out),
        )
        if failed:
            raise MemoryError(f"no memory for {rows} rows of {inputs}")
        return out

    def draw(self, logits: Floats, draws: Sequence[HowToDraw]) -> list[int]:
        """Returns a token for each row of `logits` [rows, vocab]; vocab >= 1. `engine/sampler.py`
        has the order of operations."""
        rows, vocab = logits.shape
        assert len(draws) == rows
        ids = ffi.new("int64_t[]", rows)
        failed = self._library.hearth_draw(
            self._context, floats(logits), rows, vocab, ffi.new("HearthDraw[]", draws), ids
        )
        if failed:
            raise MemoryError(f"no memory to draw from {vocab} tokens")
        return list(ids)

    def step(self, model: Any, tokens: StepTokens, states: StepStates) -> None:
        """Run a step of a decoder, or of some of its layers: see `HearthBatch` in
        `src/interface.h`.

        `model` is a `HearthModel *`. Writes keys, values, and the results in `states`. Sizes are
        not checked: they must match `model`.
        """
        assert len(tokens.outputs) == (0 if states.logits is None else len(states.logits))
        positions = _numbers(tokens.positions)
        batch = ffi.new(
            "HearthBatch *",
            (
                _numbers(tokens.ids),
                _numbers(tokens.rows),
                positions,
                positions if tokens.slots is None else _numbers(tokens.slots),
                ffi.NULL if tokens.parents is None else _numbers(tokens.parents),
                _numbers(tokens.outputs),
                len(tokens.ids),
                len(tokens.outputs),
                *(_optional(each) for each in states),
            ),
        )
        if self._library.hearth_step(self._context, model, batch):
            raise MemoryError(f"no memory for a step of {len(tokens.ids)} tokens")

    def keep(self, model: Any, row: int, count: int) -> None:
        """See `hearth_keep` in `src/interface.h`; `model` is a `HearthModel *`."""
        if self._library.hearth_keep(self._context, model, row, count):
            raise MemoryError(f"no memory for {count} guesses")

    def guess(
        self,
        heads: Any,
        hidden: Floats,
        token_ids: NDArray[np.int64],
        probabilities: Floats,
    ) -> None:
        """Find the likeliest tokens of each head of a `HearthHeads *`, from `hidden` [rows, hidden
        size]. Writes indices of outputs to `token_ids` [rows, heads, ranks], best first, and their
        `probabilities`."""
        failed = self._library.hearth_guess(
            self._context,
            heads,
            floats(hidden),
            len(hidden),
            _numbers(token_ids),
            floats(probabilities),
        )
        if failed:
            raise MemoryError(f"no memory for guesses of {len(hidden)} rows")


def supported_variants() -> list[str]:
    """Returns the variants this processor can run, best first. Raises StartupError."""
    return list(_variants(_library()))


def _variants(library: Any) -> dict[str, int]:
    """Returns the library's variants that this processor runs: numbers by name, best first."""
    names: list[str] = []
    while name := library.hearth_variant_name(len(names)):
        names.append(ffi.string(name).decode())
    return {name: n for n, name in enumerate(names) if library.hearth_is_supported(n)}


@cache
def _library() -> Any:
    """Loads the library, once. Raises StartupError."""
    try:
        library = ffi.dlopen(str(library_path()))
        # Linux may have listed a variant that this process may not use.
        return library if _variants(library) else ffi.dlopen(str(compiled(units_here())))
    except (BuildFailed, OSError) as error:
        raise StartupError(str(error)) from error


def _optional(array: Floats | None) -> Any:
    return ffi.NULL if array is None else floats(array)


def _numbers(values: "array[int] | NDArray[np.int64]") -> Any:
    return ffi.from_buffer("int64_t[]", values)
