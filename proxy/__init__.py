"""The proxy: checks tokens, keeps limits, picks an upstream and relays streams untouched.

A process of its own, beside the API servers it guards. It knows HTTP, tokens and teams; it
knows nothing of models, and importing it loads neither torch nor numpy.
"""
