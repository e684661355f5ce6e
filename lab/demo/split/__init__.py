"""A demo that tunes the split of a model over unequal processes of one machine.

The processes form a pipeline; each has some of the model's layers and a share of a core. `stage` is
one rank, `engine` starts and measures the ranks, `lab.kit.shares` makes them unequal.
"""
