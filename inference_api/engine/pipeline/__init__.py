"""One model over several processes, the ranks, each with some of its layers."""
