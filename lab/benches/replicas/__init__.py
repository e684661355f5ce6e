"""Benches of replicas behind the proxy."""
