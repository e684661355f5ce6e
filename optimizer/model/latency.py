"""Service times and latencies of a replica, by the number of requests in service.

Two parametrisations exist in the field and both are accepted. Each is an array over *pairs*
(one pair = one server on one accelerator), so that one call answers for all pairs at once.
Times are milliseconds. Pure and immutable: any thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from common.numerics import FloatArray, IntArray

ITERATION_TOKEN_BUDGET = 8192  # tokens one iteration may process; the newer reference's constant


SHARED = {"shared": True}  # metadata of a table's field that is not a column


@dataclass(frozen=True, slots=True)
class Columns:
    """Base of tables: dataclasses of aligned arrays, one entry of each per pair."""

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[float] | FloatArray]) -> Self:
        """Builds a table from the fields of one pair after the other."""
        return cls(*np.array(rows, dtype=np.float64).reshape(-1, len(cls.column_names())).T)

    @classmethod
    def zeros(cls, size: int) -> Self:
        """Returns a table of zeros, to be filled by `put` before it is shared."""
        return cls(*np.zeros((len(cls.column_names()), size)))

    def __len__(self) -> int:
        return len(self.columns()[0])

    @classmethod
    def column_names(cls) -> list[str]:
        return [field.name for field in fields(cls) if "shared" not in field.metadata]

    def columns(self) -> list[FloatArray]:
        """Returns the arrays, in the order of the fields."""
        return [getattr(self, name) for name in self.column_names()]

    def take(self, pairs: IntArray) -> Self:
        """Returns the table of a selection of pairs, in their order."""
        return replace(self, **{n: getattr(self, n)[pairs] for n in self.column_names()})

    def put(self, pairs: IntArray, part: Self) -> None:
        """Writes the table of a selection of pairs into their places."""
        for column, values in zip(self.columns(), part.columns(), strict=True):
            column[pairs] = values


@dataclass(frozen=True, slots=True)
class Occupancy(Columns):
    """The load of a replica in steady state, per pair."""

    concurrency: FloatArray  # mean number in service met by an admitted request, itself included
    service_ms: FloatArray  # mean time in service
    wait_ms: FloatArray  # mean time in the queue
    in_service: FloatArray  # time-averaged number in service


@dataclass(frozen=True, slots=True)
class PhaseModel(Columns):
    """Prefill and decode timed apart: the parameters `decodeParms` and `prefillParms`.

    With n requests in service, i input and o output tokens (llm-inferno queue-analysis v0.1):

        prefill(n) = gamma + delta i n   (0 if i = 0: there is nothing to prefill)
        step(n)    = alpha + beta n
        service(n) = prefill(n) + (o - 1) step(n) = fixed + slope n
    """

    alpha_ms: FloatArray
    beta_ms: FloatArray
    gamma_ms: FloatArray
    delta_ms: FloatArray
    in_tokens: FloatArray
    out_tokens: FloatArray

    @property
    def fixed_ms(self) -> FloatArray:
        prefills = self.in_tokens > 0
        return np.where(prefills, self.gamma_ms, 0.0) + self.alpha_ms * (self.out_tokens - 1)

    @property
    def slope_ms(self) -> FloatArray:
        return self.delta_ms * self.in_tokens + self.beta_ms * (self.out_tokens - 1)

    def service_ms(self, concurrency: FloatArray | float) -> FloatArray:
        """Returns a request's mean service time with `concurrency` in service, itself included."""
        return self.fixed_ms + self.slope_ms * concurrency

    def latencies_ms(self, occupancy: Occupancy) -> tuple[FloatArray, FloatArray]:
        """Returns ITL, and TTFT with the wait, as users see them in this state."""
        beside = occupancy.concurrency
        prefill_ms = np.where(
            self.in_tokens > 0, self.gamma_ms + self.delta_ms * self.in_tokens * beside, 0.0
        )
        return self.alpha_ms + self.beta_ms * beside, occupancy.wait_ms + prefill_ms


@dataclass(frozen=True, slots=True)
class IterationModel(Columns):
    """Prefill chunks and decode tokens share iterations: the parameters `perfParms`.

    With n requests in service, i input and m output tokens, a request needs c prefill iterations
    of at most 8192 tokens and m decode iterations (llm-inferno queue-analysis v0.7):

        c(n)       = least k with (k + m) (8192 - i/k) / (i + m) >= n
        Wp, Wd     = (beta + gamma (c+1)/2) i,   beta m + gamma m (i + (m+1)/2)
        D          = (Wp + Wd) / (c + m)         work that one request adds to an iteration
        service(n) = (c + m) (alpha + n D)
        prefill(B) = c max(alpha + (B-1) D, 0) + Wp,   ITL = (service - prefill) / m
        TTFT       = wait + prefill + ITL        with B the mean number in service
    """

    alpha_ms: FloatArray
    beta_ms: FloatArray
    gamma_ms: FloatArray
    in_tokens: FloatArray
    out_tokens: FloatArray

    def service_ms(self, concurrency: FloatArray | float) -> FloatArray:
        chunks = self._chunks(concurrency)
        _, work_ms = self._work_ms(chunks)
        return (chunks + self.out_tokens) * (self.alpha_ms + concurrency * work_ms)

    def latencies_ms(self, occupancy: Occupancy) -> tuple[FloatArray, FloatArray]:
        batch = occupancy.in_service
        chunks = self._chunks(np.maximum(np.round(batch), 1.0))
        prefill_work_ms, work_ms = self._work_ms(chunks)
        prefill_ms = chunks * np.maximum(self.alpha_ms + (batch - 1) * work_ms, 0) + prefill_work_ms
        itl_ms = np.maximum(occupancy.service_ms - prefill_ms, 0.0) / self.out_tokens
        return itl_ms, occupancy.wait_ms + prefill_ms + itl_ms

    def _chunks(self, concurrency: FloatArray | float) -> FloatArray:
        """Returns c(n): the condition times k is a quadratic in k, solved and rounded up."""
        budget, i, m = ITERATION_TOKEN_BUDGET, self.in_tokens, self.out_tokens
        linear = budget * m - i - concurrency * (i + m)
        root = (np.sqrt(linear**2 + 4 * budget * i * m) - linear) / (2 * budget)
        # 1e-9: a root that is an integer in exact arithmetic must not be rounded past itself.
        chunks: FloatArray = np.maximum(np.ceil(root - 1e-9), 1.0)
        return chunks

    def _work_ms(self, chunks: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns (Wp, D) of the class docstring."""
        i, m = self.in_tokens, self.out_tokens
        prefill_ms = (self.beta_ms + self.gamma_ms * (chunks + 1) / 2) * i
        decode_ms = self.beta_ms * m + self.gamma_ms * m * (i + (m + 1) / 2)
        return prefill_ms, (prefill_ms + decode_ms) / (chunks + m)


LatencyModel = PhaseModel | IterationModel
