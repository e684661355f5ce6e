"""Measures running servers, and compares the results."""
