"""Rows of a benchmark, run one after another into one folder."""
