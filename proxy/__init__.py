"""The proxy: checks tokens, keeps limits, picks an upstream and relays streams untouched.

It runs as a process of its own in front of the API servers. It knows HTTP, tokens and teams, but
not models, and importing it loads neither torch nor numpy.
"""
