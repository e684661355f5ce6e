"""Metrics, traces and logs: the server as people and machines see it."""
