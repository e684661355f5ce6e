"""Converts between text and token ids: tokenizers, chat templates, constraints."""
