"""Simulates a replica token by token, to check the analytic model. Pure and seeded."""
