"""Anthropic's `/v1/messages`."""
