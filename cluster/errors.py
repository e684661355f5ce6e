"""Errors that a cluster reports to its operator."""


class ClusterError(Exception):
    """Base class. The message names the value, the bound and the remedy."""


class ConfigFaulty(ClusterError):
    """The cluster's file cannot be used."""


class ActuatorUnusable(ClusterError):
    """The machines cannot be reached."""


class MetricsUnread(ClusterError):
    """The load is unknown because metrics could not be read."""


class OptimizerUnusable(ClusterError):
    """The optimizer returned no plan."""
