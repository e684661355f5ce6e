"""Sends requests to a server on schedule, and records when each piece of the answers came."""
