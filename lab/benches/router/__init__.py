"""Benches of the router, which chooses an expert for a message."""
