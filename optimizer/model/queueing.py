"""One replica as a state-dependent birth-death chain, for many pairs at once.

States 0..K count the requests in the system: up to N in service, the rest of K = N + Q waiting.
Arrivals come at rate lambda, departures leave n in service at mu(n) = n / service_ms(n); an
arrival that finds state K is lost. p_n is proportional to w_n = prod_{k<=n} lambda / mu(min(k,N)).

Nothing is summed beyond N: above it the weights are geometric with r = lambda / mu(N), so their
sums are closed. Below it one number carries all that is needed,

    E_N = sum_{n<N} w_n / w_N,   E_n = (1 + E_{n-1}) mu(n) / lambda,   E_0 = 0,

the inverse of Erlang's loss recursion (Cooper, Introduction to Queueing Theory, 1981, ch. 3,
there for constant service). All terms are positive, so nothing cancels, and an overflow to infinity
is right: states above N then have no weight. For long chains with service times affine in n, E_N is
an incomplete beta function. Only N <= 65,536 is computed.

Units: milliseconds and requests per millisecond. Pure: any thread.
"""

from dataclasses import dataclass

import numpy as np

from common.numerics import BoolArray, FloatArray, IntArray, scipy
from optimizer.model.latency import LatencyModel, Occupancy, PhaseModel

MAX_BATCH = 65_536  # requests in service on one replica that the model follows

# Up to here stepping through n, for all pairs at once, is quicker than a beta function. Longer
# chains without a closed form are summed one by one, if they are few.
LONG_CHAIN, MAX_LONG_CHAINS = 512, 32
MAX_BETA = 1e9  # parameter beyond which the beta function loses digits


@dataclass(frozen=True, slots=True)
class Replica:
    """Pairs as queues: speed (`model`), places in service (N) and places to wait (Q)."""

    model: LatencyModel
    max_batch: IntArray
    max_queue: IntArray

    def take(self, pairs: IntArray) -> "Replica":
        return Replica(self.model.take(pairs), self.max_batch[pairs], self.max_queue[pairs])

    def is_valid(self) -> BoolArray:
        """Returns whether service takes time, so that there is a highest rate, and there is more
        than one place."""
        return (self.idle_service_ms() > 0) & (self.max_batch + self.max_queue > 1)

    def idle_service_ms(self) -> FloatArray:
        """Returns the service time of a request that is alone."""
        return self.model.service_ms(1.0)

    def max_rate_per_ms(self) -> FloatArray:
        """Returns mu(N), the service rate with every place taken."""
        max_batch = self.max_batch.astype(np.float64)
        return max_batch / self.model.service_ms(max_batch)

    def analyze(self, rate_per_ms: FloatArray) -> "Performance":
        """Returns the chain in steady state, at any rate > 0: a finite queue copes with overload.

        `concurrency` is the number in service that an admitted request finds, itself included. By
        Little's law, the wait is the queue's length over the throughput, and the service time is
        the number in service over the throughput.
        """
        max_batch = self.max_batch.astype(np.float64)
        with np.errstate(over="ignore", divide="ignore"):
            below, mean_below = _states_below_batch(self, rate_per_ms)
            log_load = np.log(rate_per_ms / self.max_rate_per_ms())
            tail = queue_sums(log_load, self.max_queue.astype(np.float64))
            below = below * tail.scale
            admitted = below + tail.open
            throughput = rate_per_ms / (1.0 + tail.full / admitted)
            met = mean_below + 1.0
            concurrency = met + (max_batch - met) * (tail.open / admitted)
            at_batch = tail.open + tail.full
            in_service = mean_below + (max_batch - mean_below) * (at_batch / (below + at_batch))
            occupancy = Occupancy(
                concurrency=np.clip(concurrency, 1.0, max_batch),
                service_ms=in_service / throughput,
                wait_ms=tail.length / (rate_per_ms * admitted),
                in_service=in_service,
            )
        columns = (
            *occupancy.columns(),
            throughput,
            tail.full / (admitted + tail.full),
            *self.model.latencies_ms(occupancy),
            np.clip(in_service / max_batch, 0.0, 1.0),
        )
        return Performance(*columns)


@dataclass(frozen=True, slots=True)
class Performance(Occupancy):
    """A replica at one arrival rate, per pair."""

    throughput_per_ms: FloatArray
    loss: FloatArray  # fraction of arrivals that find the queue full
    itl_ms: FloatArray
    ttft_ms: FloatArray
    utilization: FloatArray  # in_service / N, in 0..1


def _states_below_batch(replica: Replica, rate_per_ms: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns E_N and the mean number in the system given that it is below N, per pair."""
    if not (replica.max_batch > LONG_CHAIN).any():
        return _step_through_states(replica, rate_per_ms)
    below, mean = _by_incomplete_beta(replica, rate_per_ms)
    open_pairs = np.flatnonzero(np.isnan(below))
    if open_pairs.size:
        part, rates = replica.take(open_pairs), rate_per_ms[open_pairs]
        is_long = _longest_chains(part.max_batch)
        short = np.flatnonzero(~is_long)
        if short.size:
            found = _step_through_states(part.take(short), rates[short])
            below[open_pairs[short]], mean[open_pairs[short]] = found
        for pair in np.flatnonzero(is_long):
            summed = _sum_over_states(part.take(np.array([pair])), float(rates[pair]))
            below[open_pairs[pair]], mean[open_pairs[pair]] = summed
    return below, mean


def _by_incomplete_beta(replica: Replica, rate_per_ms: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns E_N and the mean below N of long chains in closed form; NaN for other pairs.

    With service(n) = fixed + slope n, x = lambda slope and t = fixed / slope the weights are
    w_n = C(n + t, n) x^n: a negative binomial, whose sum below N is an incomplete beta function,

        sum_{n<N} w_n = (1 - x)^-(t+1) I_{1-x}(t + 1, N),   w_N = x^N / ((N+t+1) B(N+1, t+1)).
    """
    below = np.full(rate_per_ms.size, np.nan)
    mean = np.full(rate_per_ms.size, np.nan)
    model = replica.model
    if not isinstance(model, PhaseModel):
        return below, mean
    chosen = np.flatnonzero(
        (replica.max_batch > LONG_CHAIN)
        & (model.fixed_ms < MAX_BETA * model.slope_ms)
        & (rate_per_ms < replica.max_rate_per_ms())
    )
    part, rate = replica.take(chosen), rate_per_ms[chosen]
    model = model.take(chosen)
    n, x, t = (
        part.max_batch.astype(np.float64),
        rate * model.slope_ms,
        model.fixed_ms / model.slope_ms,
    )
    with np.errstate(all="ignore"):
        log_sum = np.log(scipy.special.betaincc(n, t + 1, x)) - (t + 1) * np.log1p(-x)
        log_last = n * np.log(x) - np.log(n + t + 1) - scipy.special.betaln(n + 1, t + 1)
        ratio = np.exp(log_sum - log_last)
        below[chosen] = np.where(ratio > 0, ratio, np.nan)
        mean[chosen] = _affine_mean_below(part, model, rate, below[chosen])
    return below, mean


def _longest_chains(max_batch: IntArray) -> BoolArray:
    limit = LONG_CHAIN
    if max_batch.size > MAX_LONG_CHAINS:
        limit = max(limit, int(np.partition(max_batch, -MAX_LONG_CHAINS)[-MAX_LONG_CHAINS]))
    is_long: BoolArray = max_batch > limit
    return is_long


def _step_through_states(
    replica: Replica, rate_per_ms: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns E_N and the mean below N, all pairs in step; memory does not depend on N. Pairs are
    ordered by N, largest first, so that those still running are a prefix."""
    order = np.argsort(-replica.max_batch, kind="stable")
    ordered, rate = replica.take(order), rate_per_ms[order]
    running = _running_pairs(ordered.max_batch)
    model = ordered.model
    if isinstance(model, PhaseModel) and bool(np.all(rate < ordered.max_rate_per_ms())):
        below = _recur_affine(rate * model.fixed_ms, rate * model.slope_ms, running)
        mean = _affine_mean_below(ordered, model, rate, below)
    else:
        below, mean = _recur(model, rate, running)
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    return below[back], mean[back]


def _running_pairs(max_batch_descending: IntArray) -> list[int]:
    """Returns for n = 1..max N how many leading pairs have N >= n."""
    steps = np.arange(1, int(max_batch_descending[0]) + 1)
    running: list[int] = np.searchsorted(-max_batch_descending, -steps, side="right").tolist()
    return running


def _recur_affine(offered: FloatArray, slope: FloatArray, running: list[int]) -> FloatArray:
    """Returns E_N where lambda service(n) = offered + slope n, so that E_n = (1 + E_{n-1}) n /
    (offered + slope n). Solves spend their time in this loop of four passes over cached arrays."""
    below, divisor = np.zeros_like(offered), offered.copy()
    for n, count in enumerate(running, start=1):
        head, step = below[:count], divisor[:count]
        step += slope[:count]
        head += 1.0
        head *= n
        head /= step
    return below


def _affine_mean_below(
    replica: Replica, model: PhaseModel, rate: FloatArray, below: FloatArray
) -> FloatArray:
    """Returns the mean state below N from E_N alone, for service(n) = fixed + slope n.

    Summing the balance n w_n = lambda (fixed + slope n) w_{n-1} over n < N gives
    mean (1 - lambda slope) = lambda service(1) - N / E_N. Only for lambda < mu(N), where
    lambda slope < 1.
    """
    numerator = rate * model.service_ms(1.0) - replica.max_batch / below
    mean: FloatArray = np.clip(
        numerator / (1.0 - rate * model.slope_ms), 0.0, replica.max_batch - 1.0
    )
    return mean


def _recur(
    model: LatencyModel, rate: FloatArray, running: list[int]
) -> tuple[FloatArray, FloatArray]:
    """Returns E_N and the mean state below N for any service curve, also in overload."""
    below, mean = np.zeros_like(rate), np.zeros_like(rate)
    for n, count in enumerate(running, start=1):
        if n == 1 or count != running[n - 2]:
            part = model.take(np.arange(count))
        grown = 1.0 + below[:count]
        mean[:count] += (n - 1.0 - mean[:count]) / grown
        below[:count] = grown * (n / (rate[:count] * part.service_ms(float(n))))
    return below, mean


def _sum_over_states(replica: Replica, rate_per_ms: float) -> tuple[float, float]:
    """Returns E_N and the mean state below N for one pair, summing logarithms over its states."""
    n = np.arange(1.0, float(replica.max_batch[0]) + 1.0)
    log_weight = np.concatenate(
        ([0.0], np.cumsum(np.log(rate_per_ms * replica.model.service_ms(n) / n)))
    )
    top = log_weight[:-1].max()
    weight = np.exp(log_weight[:-1] - top)
    total = float(weight.sum())
    mean = float(weight @ np.arange(weight.size)) / total
    with np.errstate(over="ignore"):
        return total * float(np.exp(top - log_weight[-1])), mean


@dataclass(frozen=True, slots=True)
class QueueSums:
    """Sums over the states N..K, in units of w_N and times `scale`."""

    open: FloatArray  # sum_{j<Q} r^j: states that admit
    full: FloatArray  # r^Q: the state that does not
    length: FloatArray  # sum_j j r^j: requests waiting
    scale: FloatArray  # 1, or r^-Q where r > 1, so that nothing overflows


def queue_sums(log_r: FloatArray, max_queue: FloatArray) -> QueueSums:
    """Returns closed sums of a geometric tail. In overload they start at its top, with 1/r."""
    s = -np.abs(log_r)
    decay = np.exp(s)
    top = np.exp(max_queue * s)
    count = np.where(
        s == 0, max_queue, np.expm1(max_queue * s) / np.where(s == 0, 1.0, np.expm1(s))
    )
    weighted = _weighted_geometric_sum(s, max_queue, count)
    overload = log_r > 0
    return QueueSums(
        open=np.where(overload, decay * count, count),
        full=np.where(overload, 1.0, top),
        length=np.where(overload, max_queue * (count + top) - weighted, weighted),
        scale=np.where(overload, top, 1.0),
    )


def _weighted_geometric_sum(s: FloatArray, size: FloatArray, count: FloatArray) -> FloatArray:
    """Returns sum_{j=1}^{size} j e^{s j} for s <= 0. Uses a series where terms would cancel."""
    decay = np.exp(s)
    near_one = -s * size < 1e-4
    closed = (decay * count - size * np.exp((size + 1) * s)) / np.where(near_one, 1.0, -np.expm1(s))
    first = size * (size + 1) / 2
    second = first * (2 * size + 1) / 3
    return np.where(near_one, first + s * (second + s * first * first / 2), closed)
