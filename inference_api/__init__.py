"""The inference API: streamed tokens from fixed user rows, batched continuously.

Importing the package loads no torch: only `engine.cuda` does.
"""
