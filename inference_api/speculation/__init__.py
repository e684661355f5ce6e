"""Drafts: who guesses the next tokens, and when it pays."""
