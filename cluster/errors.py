"""Faults of a cluster, for its operator.

ClusterError
├── ConfigFaulty        the file is wrong: nothing was started
├── ActuatorUnusable    machines, Ray or Kubernetes cannot be reached
├── MetricsUnread       a replica's or the proxy's /metrics are of no use
└── OptimizerUnusable   the optimizer does not answer, or refuses the system
"""


class ClusterError(Exception):
    """The message names the value, the bound and the remedy."""


class ConfigFaulty(ClusterError):
    """The cluster's file cannot be used."""


class ActuatorUnusable(ClusterError):
    """Machines cannot be reached."""


class MetricsUnread(ClusterError):
    """What was to be counted is unknown."""


class OptimizerUnusable(ClusterError):
    """The optimizer has given no plan."""
