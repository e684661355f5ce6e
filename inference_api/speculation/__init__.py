"""Speculative decoding: sources that draft tokens, and the choice of when drafting pays."""
