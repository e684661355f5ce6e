"""Draws a random cluster and a day of its load, both from a seed."""

import copy
import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Json = dict[str, Any]

DAY_S = 86_400
STEP_S = 15
ACCELERATORS, MODELS = 8, 12
LEVELS = {"interactive": (500, 50), "standard": (1500, 80), "batch": (6000, 160)}  # TTFT, ITL ms
ROWS = (16, 32, 64)
BURSTS_A_DAY = 4.0


@dataclass(frozen=True, slots=True)
class Day:
    """A day. `rates` are requests per second; `document` is for POST /optimizeOne."""

    document: Json
    names: tuple[str, ...]
    rates: FloatArray  # [servers, steps]

    def document_at(self, rates_per_s: FloatArray) -> Json:
        """Returns the document with these loads."""
        document = copy.deepcopy(self.document)
        for server, rate in zip(
            document["system"]["serverData"]["servers"], rates_per_s, strict=True
        ):
            server["currentAlloc"]["load"]["arrivalRate"] = 60 * float(rate)
        return document

    def with_peaks(self, peaks_per_s: FloatArray) -> "Day":
        """Returns the day scaled to these highest rates of the servers."""
        scale = peaks_per_s / self.rates.max(axis=1)
        return Day(self.document, self.names, self.rates * scale[:, None])


def random_day(servers: int, hours: float, seed: int) -> Day:
    """Returns a random day. The highest rate of each server is 1."""
    rng = random.Random(seed)
    cards = [f"accelerator-{number}" for number in range(1, ACCELERATORS + 1)]
    speeds = [0.4 * 1.5**number * rng.uniform(0.9, 1.1) for number in range(ACCELERATORS)]
    models = [_model(rng, f"model-{number:02}") for number in range(1, MODELS + 1)]
    names = [f"server-{number:03}" for number in range(1, servers + 1)]
    document = {"system": {
        "acceleratorData": {"accelerators": [
            {"name": card, "type": card, "multiplicity": 1,
             "cost": round(100 * speed**1.1 * rng.uniform(0.85, 1.15), 2)}
            for card, speed in zip(cards, speeds, strict=True)]},
        "capacityData": {"count": [{"type": card, "count": 20 * servers} for card in cards]},
        "modelData": {"models": [
            _perf(model, card, speed)
            for model in models for card, speed in zip(cards, speeds, strict=True)]},
        "serviceClassData": {"serviceClasses": [
            {"name": name, "priority": priority, "modelTargets": [
                {"model": model["name"], "slo-ttft": ttft, "slo-itl": itl} for model in models]}
            for priority, (name, (ttft, itl)) in enumerate(LEVELS.items(), start=1)]},
        "serverData": {"servers": [_server(rng, name, models) for name in names]},
        "optimizerData": {"optimizer": {"minGainPercent": 5}},
    }}  # fmt: skip
    steps = round(hours * 3600 / STEP_S)
    return Day(document, tuple(names), np.stack([_rates(rng, steps) for _ in names]))


def _model(rng: random.Random, name: str) -> Json:
    size = 10 ** rng.uniform(0, 1)  # 1 to 10
    return {"name": name, "alpha": 6.0 * size, "beta": 0.12 * size**0.8, "gamma": 8.0 * size,
            "delta": 0.004 * size}  # fmt: skip


def _perf(model: Json, card: str, speed: float) -> Json:
    at = {name: model[name] / speed for name in ("alpha", "beta", "gamma", "delta")}
    return {
        "name": model["name"], "acc": card, "accCount": 1, "maxBatchSize": 64, "atTokens": 512,
        "decodeParms": {"alpha": at["alpha"], "beta": at["beta"]},
        "prefillParms": {"gamma": at["gamma"], "delta": at["delta"]},
    }  # fmt: skip


def _server(rng: random.Random, name: str, models: list[Json]) -> Json:
    load = {
        "arrivalRate": 1.0,
        "avgInTokens": round(10 ** rng.uniform(2, 3.3)),
        "avgOutTokens": round(10 ** rng.uniform(1.7, 2.7)),
    }
    return {"name": name, "class": rng.choice(list(LEVELS)), "model": rng.choice(models)["name"],
            "minNumReplicas": 1, "maxBatchSize": rng.choice(ROWS),
            "currentAlloc": {"load": load}}  # fmt: skip


def _rates(rng: random.Random, steps: int) -> FloatArray:
    """Returns a daily wave, with bursts that last for minutes and rise within one minute."""
    at_s = STEP_S * np.arange(steps)
    night = rng.uniform(0.15, 0.6)  # share of the rate at noon
    noon_s = rng.gauss(14, 2.5) * 3600
    wave = 0.5 * (1 + np.cos(2 * math.pi * (at_s - noon_s) / DAY_S))
    rates = night + (1 - night) * wave**1.5
    for _ in range(_poisson(rng, BURSTS_A_DAY * steps * STEP_S / DAY_S)):
        start_s, lasts_s = rng.uniform(0, at_s[-1]), rng.uniform(300, 1800)
        rises = np.clip((at_s - start_s) / 60, 0, 1) * np.clip(
            (start_s + lasts_s - at_s) / 60, 0, 1
        )
        rates = rates * (1 + rng.uniform(0.3, 1.2) * rises)
    return np.asarray(rates / rates.max())


def _poisson(rng: random.Random, mean: float) -> int:
    count, left = 0, rng.expovariate(1.0)
    while left < mean:
        count, left = count + 1, left + rng.expovariate(1.0)
    return count
