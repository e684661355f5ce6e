"""Anthropic's `/v1/messages`: bodies and answers."""
