"""A pipeline of processes that serve one model, each with some of its layers and some of a core.

`stage` is a rank of the engine's, `engine` starts and measures them, `lab.kit.shares`
makes them unequal. It is what `lab.demo.split` tunes where machines are equal.
"""
