"""Benches of the proxy."""
