"""Unequal replicas behind the proxy."""
