"""Errors of a cluster, for its operator.

ClusterError
├── ConfigFaulty        the file is wrong: nothing was started
├── ActuatorUnusable    machines, Ray or Kubernetes cannot be reached
├── MetricsUnread       /metrics of a replica or the proxy could not be read
└── OptimizerUnusable   the optimizer does not answer, or refuses the system
"""


class ClusterError(Exception):
    """The message names the value, the bound and the remedy."""


class ConfigFaulty(ClusterError):
    """The cluster's file cannot be used."""


class ActuatorUnusable(ClusterError):
    """The machines cannot be reached."""


class MetricsUnread(ClusterError):
    """The load is unknown because metrics could not be read."""


class OptimizerUnusable(ClusterError):
    """The optimizer returned no plan."""
