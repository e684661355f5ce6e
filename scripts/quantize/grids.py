"""Finds the numbers nearest to given weights that blocks of GGUF files can hold.

A weight is step * value - floor, where a value is any integer of a range, or one of a table. A step
or floor is a small integer of a group of inputs, times one of the block's `units` of half
precision. Steps and floors are searched; values are then the nearest ones. `importance` is the
weight of each input's error. Pure numpy, vectorised over blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Integers = NDArray[Any]

MOST_MINIMUM = 63  # largest integer of a floor
LARGEST_HALF = float(np.finfo(np.float16).max)
SWEEPS = 3  # rounds that improve the integers, then the units
STRETCHES = np.linspace(0.72, 1.12, 17)  # without floors: factors of the largest weight's value
SPREADS = np.linspace(-1.5, 1.5, 13)  # with floors: added to the largest weight's value


@dataclass(frozen=True, slots=True)
class Form:
    """The numbers that blocks of one of GGUF's types can hold."""

    kind: GGMLQuantizationType
    num_groups: int
    values: tuple[int, int]  # least and largest
    most_scale: int  # largest integer of a step; 1 means that the units are the steps
    has_floors: bool
    table: tuple[int, ...] = ()  # all values, ascending; empty if that is every integer

    def nearest(self, quotients: Floats) -> Floats:
        """Returns the values nearest to weights divided by their steps. May change `quotients`."""
        if not self.table:
            return np.clip(np.rint(quotients, out=quotients), *self.values, out=quotients)
        table = np.array(self.table, np.float32)
        nearest: Floats = table[np.searchsorted((table[1:] + table[:-1]) / 2, quotients)]
        return nearest

    @property
    def block_inputs(self) -> int:
        return gguf.GGML_QUANT_SIZES[self.kind][0]

    @property
    def bits(self) -> float:
        """Returns the mean bits of a weight."""
        inputs, num_bytes = gguf.GGML_QUANT_SIZES[self.kind]
        return 8 * num_bytes / inputs

    def grouped(self, block: NDArray[Any]) -> NDArray[Any]:
        return block.reshape(len(block), self.num_groups, -1)


FORMS = {
    form.kind: form
    for form in (
        Form(GGMLQuantizationType.IQ4_NL, 1, (-127, 113), 1, False, gguf.quants.IQ4_NL.kvalues),
        Form(GGMLQuantizationType.Q5_0, 1, (-16, 15), 1, has_floors=False),
        Form(GGMLQuantizationType.Q4_K, 8, (0, 15), 63, has_floors=True),
        Form(GGMLQuantizationType.Q5_K, 8, (0, 31), 63, has_floors=True),
        Form(GGMLQuantizationType.Q8_0, 1, (-127, 127), 1, has_floors=False),
        Form(GGMLQuantizationType.Q6_K, 16, (-32, 31), 127, has_floors=False),
    )
}


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers that each of several blocks can hold, as the file stores them."""

    form: Form
    units: NDArray[np.float16]  # [blocks, 2]: the units of steps and floors
    scales: Integers  # [blocks, groups]: the integers of steps
    minima: Integers  # [blocks, groups]: the integers of floors

    @property
    def steps(self) -> Floats:
        """[blocks, groups, 1]"""
        return _product(self.units[:, :1], self.scales)

    @property
    def floors(self) -> Floats:
        """[blocks, groups, 1]"""
        return _product(self.units[:, 1:], self.minima)

    def nearest(self, weights: Floats) -> Floats:
        """Returns the values nearest to `weights` [blocks, groups, inputs]."""
        return self._nearest(weights + self.floors, self.steps)

    def errors(self, weights: Floats, importance: Floats) -> Floats:
        """Returns the weighted sums of squared errors [blocks, groups]."""
        raised, steps = weights + self.floors, self.steps
        differences = self._nearest(raised, steps)
        differences *= steps
        differences -= raised
        return _sum(importance * differences, differences)

    def _nearest(self, raised: Floats, steps: Floats) -> Floats:
        """Returns the nearest values. `raised` are the weights plus their floors."""
        inverse = np.divide(1, steps, out=np.zeros_like(steps), where=steps != 0)
        return self.form.nearest(raised * inverse)

    def chosen(self, other: "Grid", is_other: NDArray[np.bool_]) -> "Grid":
        """Returns a grid with `other`'s blocks where `is_other`."""
        pairs = (
            (self.units, other.units),
            (self.scales, other.scales),
            (self.minima, other.minima),
        )
        return Grid(self.form, *(np.where(is_other[:, None], b, a) for a, b in pairs))


def searched(form: Form, weights: Floats, importance: Floats) -> Grid:
    """Returns the best grid found for finite `weights` [blocks, inputs], at least as good as
    `plain`. `importance` is [inputs], or [blocks, inputs]."""
    grouped = form.grouped(weights)
    important = form.grouped(np.broadcast_to(importance, weights.shape))
    fit = _fitted_with_floors if form.has_floors else _fitted
    grid = _as_integers(form, *fit(form, grouped, important))
    for _ in range(SWEEPS):
        grid = _with_better_units(
            _with_better_integers(grid, grouped, important), grouped, important
        )
    return _better(plain(form, weights), grid, grouped, important)


def plain(form: Form, weights: Floats) -> Grid:
    """Returns the grid from the least to the largest weight, as for rounding without a search."""
    grouped = form.grouped(weights)
    low, high = form.values
    if form.has_floors:
        least = np.minimum(grouped.min(-1), 0)
        return _as_integers(form, (grouped.max(-1) - least) * np.float32(1 / high), -least)
    at = np.abs(grouped).argmax(-1)[..., None]
    return _as_integers(
        form, np.take_along_axis(grouped, at, -1)[..., 0] * np.float32(1 / low), None
    )


def _product(units: NDArray[np.float16], integers: Integers) -> Floats:
    return (units.astype(np.float32) * integers.astype(np.float32))[..., None]


def _sum(*factors: Floats) -> Floats:
    """Returns the sums over inputs of the factors' products."""
    names = ",".join(["...i"] * len(factors))
    total: Floats = np.einsum(f"{names}->...", *factors)
    return total


def _fitted(form: Form, weights: Floats, importance: Floats) -> tuple[Floats, None]:
    """Returns steps [blocks, groups]. For values v the best step is s = (w.v) / (v.v), which
    reduces the error by (w.v) s. It tries the values of several steps of either sign, because there
    is one more value below zero than above."""
    low, _ = form.values
    largest = np.abs(weights).max(-1, keepdims=True)
    inverse = np.divide(1, largest, out=np.zeros_like(largest), where=largest > 0)
    relative = weights * inverse
    steps = np.zeros(weights.shape[:-1], np.float32)
    most = np.zeros_like(steps)
    for stretch in (*STRETCHES, *-STRETCHES):
        values = form.nearest(relative * np.float32(low * stretch))
        important = importance * values
        product, square = _sum(important, weights), _sum(important, values)
        step = np.divide(product, square, out=np.zeros_like(product), where=square > 0)
        is_better = product * step > most
        steps, most = (
            np.where(is_better, new, old) for new, old in ((step, steps), (product * step, most))
        )
    return steps, None


def _fitted_with_floors(form: Form, weights: Floats, importance: Floats) -> tuple[Floats, Floats]:
    """Returns steps and floors [blocks, groups]: the best of least squares for several values."""
    _, high = form.values
    least = np.minimum(weights.min(-1, keepdims=True), 0)
    extent = weights.max(-1, keepdims=True) - least
    inverse = np.divide(1, extent, out=np.zeros_like(extent), where=extent > 0)
    relative, weighted = (weights - least) * inverse, weights * importance
    ones, total, squares = _sum(importance), _sum(weighted), _sum(weighted, weights)
    steps, floors = extent[..., 0] / high, -least[..., 0]
    fewest = np.full_like(steps, np.inf)
    for spread in SPREADS:
        values = form.nearest(relative * np.float32(high + spread))
        important = importance * values
        sums, square, product = _sum(important), _sum(important, values), _sum(important, weights)
        with np.errstate(divide="ignore", invalid="ignore"):
            determinant = ones * square - sums * sums
            step = (ones * product - total * sums) / determinant
            floor = (sums * product - square * total) / determinant
            no_floor = ~(floor > 0)
            step = np.where(no_floor, product / square, step)
            floor = np.where(no_floor, 0, floor)
            error = squares - 2 * (step * product - floor * total)
            error += step * step * square - 2 * step * floor * sums + floor * floor * ones
        is_better = (error < fewest) & (step > 0) & np.isfinite(floor)
        steps, floors, fewest = (
            np.where(is_better, new, old)
            for new, old in ((step, steps), (floor, floors), (error, fewest))
        )
    return steps, floors


def _as_integers(form: Form, steps: Floats, floors: Floats | None) -> Grid:
    """Returns the grid that is nearest to these steps and floors [blocks, groups]."""
    of_steps, scales = _in_units(steps, form.most_scale)
    if floors is None:
        return Grid(form, np.concatenate((of_steps, 0 * of_steps), -1), scales, 0 * scales)
    of_floors, minima = _in_units(floors, MOST_MINIMUM)
    return Grid(form, np.concatenate((of_steps, of_floors), -1), scales, minima)


def _in_units(numbers: Floats, most: int) -> tuple[NDArray[np.float16], Integers]:
    """Returns a unit for each block, and each number as an integer of units, at most `most`. If
    `most` is 1, the unit has the sign of the number."""
    at = np.abs(numbers).argmax(-1)[..., None]
    units = _halves(np.take_along_axis(numbers, at, -1) * np.float32(1 / most))
    if most == 1:
        return units, np.ones(numbers.shape, np.int32)
    floats = units.astype(np.float32)
    counts = np.divide(numbers, floats, out=np.zeros_like(numbers), where=floats != 0)
    return units, np.clip(np.rint(counts), -most, most).astype(np.int32)


def _halves(numbers: Floats) -> NDArray[np.float16]:
    return np.clip(numbers, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)


def _with_better_integers(grid: Grid, weights: Floats, importance: Floats) -> Grid:
    """Returns the grid with neighbouring integers in groups where their error is smaller."""
    if grid.form.most_scale == 1:
        return grid
    scales, minima = grid.scales, grid.minima
    fewest = grid.errors(weights, importance)
    for near in _neighbours(grid):
        errors = near.errors(weights, importance)
        is_better = errors < fewest
        scales, minima, fewest = (
            np.where(is_better, new, old)
            for new, old in ((near.scales, scales), (near.minima, minima), (errors, fewest))
        )
    return replace(grid, scales=scales, minima=minima)


def _neighbours(grid: Grid) -> Iterator[Grid]:
    most, moves = grid.form.most_scale, (-1, 0, 1)
    least = 0 if grid.form.has_floors else -most
    for scale_move in moves:
        for minimum_move in moves if grid.form.has_floors else (0,):
            if scale_move or minimum_move:
                yield replace(
                    grid,
                    scales=np.clip(grid.scales + scale_move, least, most),
                    minima=np.clip(grid.minima + minimum_move, 0, MOST_MINIMUM),
                )


def _with_better_units(grid: Grid, weights: Floats, importance: Floats) -> Grid:
    """Returns the grid with new units in blocks where their error is smaller: the least squares
    solution for the block's values, rounded to half precision."""
    values = grid.nearest(weights) * grid.scales[..., None].astype(np.float32)
    important = importance * values
    product, square = (_sum(important, each).sum(-1) for each in (weights, values))
    floor = np.zeros_like(product)
    with np.errstate(divide="ignore", invalid="ignore"):
        step = product / square
        if grid.form.has_floors:
            minima = grid.minima.astype(np.float32)
            mixed = (_sum(important) * minima).sum(-1)
            ones = (_sum(importance) * minima * minima).sum(-1)
            total = (_sum(importance, weights) * minima).sum(-1)
            determinant = ones * square - mixed * mixed
            both = (ones * product - mixed * total) / determinant
            floor = (mixed * product - square * total) / determinant
            has_floor = (floor > 0) & np.isfinite(both)
            step, floor = np.where(has_floor, both, step), np.where(has_floor, floor, 0)
    units = np.nan_to_num(np.stack((step, floor), -1), posinf=0, neginf=0)
    return _better(grid, replace(grid, units=_halves(units)), weights, importance)


def _better(grid: Grid, other: Grid, weights: Floats, importance: Floats) -> Grid:
    """Returns the better of two grids for each block; `grid` if they are equally good."""
    of_one, of_other = (each.errors(weights, importance).sum(-1) for each in (grid, other))
    return grid.chosen(other, of_other < of_one)
