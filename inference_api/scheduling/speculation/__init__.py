"""Several tokens per step: draft sources, and how many drafted tokens are worth their time."""
