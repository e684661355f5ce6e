"""Builds `models/experts`, variants of the default model that each know one topic better.

A topic is a list of relations (`topics`) over its own tables (`sums`, `records`, `queries`), in the
form of `lab.models.default`, whose corpus, training and judge do the rest (`making`).
`python -m lab.models.experts` is the command over them.
"""
