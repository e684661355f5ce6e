"""The samplers by name."""

from typing import Literal

from weights.samplers.adaptive import propose_adaptively
from weights.samplers.dirichlet import propose_at_random, propose_by_dirichlet
from weights.search import Sampler

SamplerName = Literal["adaptive", "dirichlet_mle", "random"]

SAMPLERS: dict[SamplerName, Sampler] = {
    "adaptive": propose_adaptively,
    "dirichlet_mle": propose_by_dirichlet,
    "random": propose_at_random,
}
