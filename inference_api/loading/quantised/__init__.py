"""Checkpoints that come quantised."""
