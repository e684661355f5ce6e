"""Tracks the current speed of each model on each accelerator. Controller thread only.

The document's parameters never change. Two factors, one for decode and one for prefill, say how
machines presently differ from these parameters. The optimizer's `POST /tune` computes the factors
from observed TTFT and ITL. It is stateless, so the filter's state is part of the question.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.controller.demand import OfferedLoad, ServerTraffic, Traffic
from cluster.controller.optimizer import FactorsReply, OptimizerClient, TuneReply
from cluster.errors import OptimizerUnusable
from cluster.replicas import Group
from cluster.system import Json, SystemDocument

LEAST_ENDED = 5  # fewest requests for meaningful means
SATURATED = 0.9  # mean requests present per row from which a server counts as saturated
LEAST_ERROR, LARGEST_ERROR = 0.02, 1.0  # bounds on a mean's relative error
SPEED_KEYS = ("decodeParms", "prefillParms", "perfParms", "serviceCurve")

ModelOn = tuple[str, str]
"""A model and an accelerator."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Current factors, and why others were not learned."""

    factors: Mapping[ModelOn, FactorsReply] = field(default_factory=dict)
    why: Mapping[ModelOn, str] = field(default_factory=dict)


class Speeds:
    def __init__(self, system: SystemDocument, optimizer: OptimizerClient) -> None:
        self._system, self._optimizer = system, optimizer
        self._tuned: dict[ModelOn, TuneReply] = {}

    @property
    def perf(self) -> dict[ModelOn, Json]:
        """Returns the document's performance data at the current speeds."""
        return {key: self._now(key, each) for key, each in self._system.perf.items()}

    @property
    def factors(self) -> dict[ModelOn, FactorsReply]:
        return {key: tuned.factors for key, tuned in self._tuned.items()}

    def slowness(self, model: str) -> float:
        """Returns the largest factor by which the model is slower than in the document, on any
        accelerator; at least 1."""
        factors = [each for (name, _), each in self.factors.items() if name == model]
        return max([1.0, *(max(each.decode, each.prefill) for each in factors)])

    def learn(
        self, traffic: Mapping[str, ServerTraffic], replicas: Mapping[Group, int], at_s: float
    ) -> Learned:
        """Update the factors. `replicas` has the groups whose number of replicas did not change.
        Without an answer of the optimizer, factors stay as they are."""
        why = {}
        for server, seen in traffic.items():
            for group, each in seen.by_group.items():
                key = (str(self._system.servers[server].get("model")), group.accelerator)
                question = self._question(key, group, each, replicas.get(group, 0), at_s)
                if question is None:
                    continue
                try:
                    tuned = self._optimizer.tune(question)
                except OptimizerUnusable as error:
                    why[key] = str(error)
                    continue
                self._tuned[key] = tuned
                if not all(tuned.accepted):
                    why[key] = "too surprising"
        return Learned(self.factors, why)

    def _question(
        self, key: ModelOn, group: Group, seen: Traffic, replicas: int, at_s: float
    ) -> Json | None:
        base = self._system.perf.get(key)
        if base is None or not replicas or not seen.arrived or seen.ended < LEAST_ENDED:
            return None
        error = min(max(1 / math.sqrt(seen.ended), LEAST_ERROR), LARGEST_ERROR)
        load = OfferedLoad.of(seen.per_minute / replicas, *seen.mean_tokens)
        # While a queue grows, waits are below the model's steady state, and would make the machine
        # look faster than it is.
        is_saturated = _present(seen) >= SATURATED * group.user_rows * replicas
        observation = load.as_json() | {
            "at": at_s,
            "ttft": None if is_saturated else seen.ttft_ms,
            "itl": seen.itl_ms,
            "ttftError": error,
            "itlError": error,
            "loadError": math.sqrt(2 / seen.ended),
        }
        found = {name: value for name, value in observation.items() if value is not None}
        before = self._tuned.get(key)
        return {
            **{name: base[name] for name in SPEED_KEYS if name in base},
            "maxBatchSize": group.user_rows,
            "avgInTokens": found["avgInTokens"],
            "avgOutTokens": found["avgOutTokens"],
            "observations": [found],
            **({} if before is None else {"state": before.state}),
        }

    def _now(self, key: ModelOn, base: Json) -> Json:
        tuned = self._tuned.get(key)
        if tuned is None:
            return base
        parts = (tuned.decode_parms, tuned.prefill_parms, tuned.perf_parms, tuned.service_curve)
        now = {name: part for name, part in zip(SPEED_KEYS, parts, strict=True) if part}
        return base | {name: part for name, part in now.items() if name in base}


def _present(seen: Traffic) -> float:
    """Returns the mean number of requests at the replicas, waiting or served, by Little's law."""
    if not seen.seconds:
        return 0.0
    served_s = seen.completion_tokens * (seen.itl_ms or 0.0) / 1000
    return (seen.ended * (seen.ttft_ms or 0.0) / 1000 + served_s) / seen.seconds
