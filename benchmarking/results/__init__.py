"""Writes the documented files of a run from its raw records."""
