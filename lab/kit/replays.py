"""Simulates exactly the requests of a measured row, at the times they were sent."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.latency import input_tokens, output_tokens
from benchmarking.analysis.predict import Prediction, batch_at
from lab.kit.course import Course
from optimizer.inferno_json import read
from optimizer.model.curve_chain import CurveReplica
from optimizer.questions.prediction import SAMPLES, log_normal, sampled
from optimizer.questions.queries import SizeQuery
from optimizer.simulation.estimate import Estimate, measured, run
from optimizer.simulation.server import Server
from optimizer.simulation.traffic import Requests
from optimizer.system import System


def replay(
    perf: Mapping[str, Any],
    point: LoadPoint,
    shape: tuple[int, int],
    slowness: Sequence[tuple[float, float]] = (),
) -> Prediction:
    """Returns the prediction of the simulation. TTFT counts from when requests were due, as in the
    measurement. `slowness` has moments on the run's clock, each with the factor on times from then
    on. The bounds come from the errors of the curve alone."""
    sent = sorted(point.all_records, key=lambda record: record.sent_s)
    start_s = sent[0].sent_s
    drawn = Requests(
        np.array([1000 * (record.sent_s - start_s) for record in sent]),
        np.array([input_tokens(record) or shape[0] for record in sent]),
        np.array([output_tokens(record) if record.chunk_s else shape[1] for record in sent]),
        np.zeros(len(sent), dtype=np.int64),
    )
    course = Course.of([(1000 * max(at_s - start_s, 0.0), factor) for at_s, factor in slowness])
    warmup = sum(record.is_warmup for record in sent)
    replica = _replica(perf, shape)
    late_ms = fmean(1000 * (record.sent_s - record.scheduled_s) for record in point.measured)
    server = Server(replica.curve, replica.max_batch, replica.max_queue)
    rng = np.random.default_rng(0)
    samples = SAMPLES if replica.curve.has_errors else 0
    curves = [replica.curve, *(sampled(replica.curve, rng) for _ in range(samples))]
    said, *others = (
        simulated(replace(server, curve=curve), drawn, warmup, course) for curve in curves
    )
    means = np.array([(one.ttft.value, one.itl.value) for one in (said, *others)])
    bounds_ms = means[0] * log_normal(means) if others else None
    return Prediction(
        rate_per_s=point.offered_per_s,
        ttft_ms=said.ttft.value + late_ms,
        itl_ms=said.itl.value,
        wait_ms=said.wait.value,
        utilization=said.utilization,
        max_rate_per_s=1000 * replica.max_rate_per_ms,
        method="simulation",
        ttft_bounds_ms=None if bounds_ms is None else tuple(bounds_ms[:, 0] + late_ms),
        itl_bounds_ms=None if bounds_ms is None else tuple(bounds_ms[:, 1]),
    )


def simulated(server: Server, drawn: Requests, warmup: int, course: Course) -> Estimate:
    """Simulates requests on a machine whose speed follows `course`: shifts arrivals, simulates at
    constant speed, and shifts the results back. The first `warmup` requests do not count."""
    come = course.done(drawn.arrival_ms)
    first = min(float(come[0]), 0.0)  # a simulation begins at 0
    served = run(server, replace(drawn, arrival_ms=come - first))
    shifted = replace(
        served,
        admitted_ms=course.when(served.admitted_ms + first),
        first_token_ms=course.when(served.first_token_ms + first),
        end_ms=course.when(served.end_ms + first),
    )
    return measured(server, drawn, shifted, warmup)


def _replica(perf: Mapping[str, Any], shape: tuple[int, int]) -> CurveReplica:
    asked = {
        "serviceCurve": perf["serviceCurve"],
        "maxBatchSize": batch_at(perf, shape[1]),
        "avgInTokens": shape[0],
        "avgOutTokens": shape[1],
    }
    query = read(SizeQuery, asked)
    replica = query.table(query.perf(System())).curve_replica(0)
    assert replica is not None  # a curve was given
    return replica
