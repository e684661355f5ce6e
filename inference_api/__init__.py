"""The inference API: streams tokens from fixed user rows, with continuous batching.

Importing the package does not import torch; only `engine.cuda` does.
"""
