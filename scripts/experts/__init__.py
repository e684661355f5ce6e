"""Builds `models/experts`, variants of the default model that each know one topic better.

A topic is a list of relations (`topics`) over its own tables (`sums`, `records`, `queries`), in the
form of `scripts.default_model`, whose corpus, training and judge do the rest (`making`).
`python -m scripts.make_experts` is the command over them.
"""
