"""Benches of the cluster's controller over a virtual day."""
