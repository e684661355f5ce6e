"""Whole systems on one machine: a cluster whose load changes, a model over unequal processes."""
