"""Requests sent to a server at honest times, and everything that came back, stamped."""
