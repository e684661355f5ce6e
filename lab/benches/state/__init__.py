"""Benches of the memory of rows: agents that share a prompt, and long contexts."""
