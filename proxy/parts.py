"""The parts of a proxy that its application gets from the composition root."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.access.auth import Authenticator
from proxy.access.limits import TeamLimits
from proxy.access.policy import Policy
from proxy.upstreams.balancer import Balancer
from proxy.upstreams.discovery import Discovery


@dataclass(frozen=True, slots=True)
class ProxyParts:
    """`refreshers` read files again that may have changed."""

    authenticator: Authenticator
    balancer: Balancer
    limits: TeamLimits
    policy: Callable[[], Policy]
    discovery: Discovery
    refreshers: Sequence[Callable[[], object]] = ()
