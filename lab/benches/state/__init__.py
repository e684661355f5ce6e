"""Benches of what rows remember: agents that share a prompt, and long contexts."""
