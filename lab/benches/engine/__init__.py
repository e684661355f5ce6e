"""Benches of the engine: steps, kernels, quantisation, a model's answers."""
