"""The optimizer's solvers."""
