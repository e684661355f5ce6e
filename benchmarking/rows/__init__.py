"""Runs the rows of a benchmark one after another, into one folder."""
