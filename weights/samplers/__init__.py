"""Chooses a sampler by its name."""

from typing import Literal

from weights.samplers.adaptive import AdaptiveSampler
from weights.samplers.dirichlet import DirichletSampler, RandomSampler
from weights.search import Sampler

SamplerName = Literal["adaptive", "dirichlet_mle", "random"]


def choose_sampler(name: SamplerName) -> Sampler:
    samplers: dict[SamplerName, Sampler] = {
        "adaptive": AdaptiveSampler(),
        "dirichlet_mle": DirichletSampler(),
        "random": RandomSampler(),
    }
    return samplers[name]
