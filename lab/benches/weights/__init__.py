"""Benches of the search for the best split of a model."""
