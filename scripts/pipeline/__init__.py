"""A pipeline of processes that serve one model, each with some of its layers and some of a core.

`stage` runs the engine's ranks under torchrun, `engine` starts and measures them, `cpu_share` makes
them unequal. It is what `scripts/tune_partition.py` tunes where there are no unequal machines.
"""
