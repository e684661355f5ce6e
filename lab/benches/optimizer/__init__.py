"""Benches of the optimizer and its solvers."""
