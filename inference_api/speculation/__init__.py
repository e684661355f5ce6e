"""Speculative decoding: sources that draft tokens, and the decision when drafting pays."""
