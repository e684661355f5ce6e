"""The stories that the demo plays: replicas' speed, and load over time. Immutable: any thread."""

from dataclasses import dataclass
from typing import Any, NamedTuple

SERVER, ACCELERATOR = "chat", "share"
QUIET_PERIODS, BUSY_PERIODS, LATE_PERIODS = 6, 8, 9
MAX_REPLICAS = 3
MODEL_NAME = "hearth-tiny"


@dataclass(frozen=True, slots=True)
class Backend:
    """How a replica is run, and the speed that the optimizer's document gives it before anything is
    measured."""

    settings: dict[str, str]
    perf: dict[str, Any]
    model: str | None = None


# A step of the mock takes 25 ms for any number of rows.
MOCK = Backend(
    {"MOCK_MODEL": "1", "MOCK_TOKENS_PER_SECOND": "40", "MODEL_NAME": MODEL_NAME},
    {
        "decodeParms": {"alpha": 25.0, "beta": 0.05},
        "prefillParms": {"gamma": 25.0, "delta": 0.001},
    },
)


class Shares(NamedTuple):
    """Shares of a core that each replica gets before and after the machines become slower."""

    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Story:
    """A load for some periods, `growth` times that load for some, then the first load again.

    `planned_ttft_ms` is a mean, while every request must attain `slo_ttft_ms`, so it is lower.
    """

    backend: Backend = MOCK
    growth: float = 2.0
    shares: Shares | None = None
    period_s: float = 10.0  # a replica on Ray takes nearly 5 s to start
    rate_per_s: float = 11.0
    user_rows: int = 25
    out_tokens: int = 40
    planned_ttft_ms: float = 120.0
    slo_ttft_ms: float = 1000.0
    slo_itl_ms: float = 60.0
    tunes: bool = True
    seed: int = 0
    quiet_periods: int = QUIET_PERIODS
    busy_periods: int = BUSY_PERIODS
    late_periods: int = LATE_PERIODS

    @property
    def rise_s(self) -> float:
        return self.quiet_periods * self.period_s

    @property
    def fall_s(self) -> float:
        return self.rise_s + self.busy_periods * self.period_s

    @property
    def end_s(self) -> float:
        return self.fall_s + self.late_periods * self.period_s

    @property
    def stabilization_s(self) -> float:
        return 2 * self.period_s

    @property
    def scale_down_s(self) -> float:
        return 4 * self.period_s

    @property
    def most_per_s(self) -> float:
        return self.rate_per_s * max(self.growth, 1.0)

    def rate_at(self, at_s: float) -> float:
        """Returns the requests per second."""
        return self.rate_per_s * (self.growth if self.rise_s <= at_s < self.fall_s else 1)


# Constant load on replicas that are 30 % slower from `rise_s` on. The speed of a replica is
# measured first, and determines the load.
SLOW_MACHINE = Story(
    backend=Backend({"MODEL_NAME": MODEL_NAME}, {}),
    growth=1.0,
    shares=Shares(0.4, 0.28),
    user_rows=8,
    planned_ttft_ms=200.0,
    quiet_periods=6,
    busy_periods=15,
    late_periods=0,
)
