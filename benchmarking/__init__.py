"""Measuring: what a running server does, and beside what."""
